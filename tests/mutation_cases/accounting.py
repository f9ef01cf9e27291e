"""Rules of privacy loss distributions."""

from tests.mutation_cases.case import Mutation

EVENTS = "tests/accounting/pld/test_events.py"
PAIRS = "tests/accounting/pld/test_pairs.py"
PLANS = "tests/accounting/pld/test_plans.py"
PREFIXES = "tests/accounting/pld/test_prefixes.py"
READINGS = "tests/accounting/pld/test_readings.py"
FREQUENCIES = "tests/accounting/pld/test_frequencies.py"
DISCRETE = "tests/accounting/pld/test_discrete_gaussian.py"
DOMINATION = "tests/accounting/pld/test_domination.py"
PLAN_FILTER = "tests/ledger/test_plan_filter.py"
PLANNING = "tests/service/test_planning.py"
TRAJECTORIES = "tests/service/test_trajectories.py"
WORK = "tests/accounting/test_work.py"

CASES = (
    Mutation(
        "the mass of a cell goes to its lower end",
        "app/accounting/pld/dots.py",
        "    masses[1:] += upper\n    masses[:-1] += p - upper\n",
        "    masses[:-1] += p\n",
        (PAIRS, PLANS),
    ),
    Mutation(
        "Q's mass does not divide a cell's",
        "app/accounting/pld/dots.py",
        "    upper = np.clip(upper / -np.expm1(losses[:-1] - losses[1:]), 0, p)\n",
        "    upper = np.clip(upper, 0, p)\n",
        (PAIRS, PLANS),
    ),
    Mutation(
        "smaller losses than the lattice has are lost",
        "app/accounting/pld/dots.py",
        "    masses[0] += tails.p_below[0] * (1 + TAIL_ERROR)\n",
        "",
        (PAIRS, PLANS),
    ),
    Mutation(
        "losses that count as infinite are forgotten",
        "app/accounting/pld/plans.py",
        "        if log(self.infinite or exp(-LARGEST_LOG)) > goal:\n            return inf\n",
        "",
        (PLANS,),
    ),
    Mutation(
        "a composition repeats each of its parts once",
        "app/accounting/pld/frequencies.py",
        "        logs += count * np.log(np.where",
        "        logs += np.log(np.where",
        (PLANS, EVENTS),
    ),
    Mutation(
        "a frequency's conjugate is not counted",
        "app/accounting/pld/composition.py",
        "1 / parts.size, 2 / parts.size)",
        "1 / parts.size, 1 / parts.size)",
        (PLANS, EVENTS),
    ),
    Mutation(
        "the weight starts a place after epsilon",
        "app/accounting/pld/composition.py",
        "    first = ceil(epsilon / spacing)\n",
        "    first = ceil(epsilon / spacing) + 1\n",
        (PLANS,),
    ),
    Mutation(
        "the addition of a record is not looked at",
        "app/accounting/pld/events.py",
        "        if self.addition != self.removal:\n            yield self.addition\n",
        "",
        (EVENTS,),
    ),
    Mutation(
        "of many noises each class has the most",
        "app/accounting/pld/merging.py",
        "sorted(sampled, key=lambda each: each[1])",
        "sorted(sampled, key=lambda each: -each[1])",
        (EVENTS,),
    ),
    Mutation(
        "a replaced record moves a Laplace sum once",
        "app/accounting/pld/events.py",
        "LaplacePair(event.noise_multiplier / sensitivity(relation))",
        "LaplacePair(event.noise_multiplier)",
        (EVENTS,),
    ),
    Mutation(
        "a replaced record moves a sum of integers once",
        "app/accounting/pld/events.py",
        "DiscreteGaussianPair(sigma, event.sensitivity * int(sensitivity(relation)))",
        "DiscreteGaussianPair(sigma, event.sensitivity)",
        (DISCRETE,),
    ),
    Mutation(
        "a group moves a sum of integers as far as a record",
        "app/accounting/group_privacy.py",
        "else event.sensitivity * size",
        "else event.sensitivity",
        (DISCRETE,),
    ),
    Mutation(
        "less of the noise on integers covers more of it",
        "app/accounting/pld/domination.py",
        "pair.sigma == other.sigma",
        "pair.sigma <= other.sigma",
        (DOMINATION,),
    ),
    Mutation(
        "tiny tails of the noise on integers are lost",
        "app/accounting/pld/discrete_gaussian.py",
        "        found = np.maximum(found, LEAST) + LEAST\n",
        "",
        (DISCRETE,),
    ),
    Mutation(
        "the normal tail of the noise on integers has no corrections",
        "app/accounting/pld/discrete_gaussian.py",
        " + corrections\n",
        "\n",
        (DISCRETE,),
    ),
    Mutation(
        "what is rounded up on a sample is mass of a cell",
        "app/accounting/pld/pairs.py",
        "np.maximum(np.arange(1 + own.size - losses.size, 1 + own.size), 0)",
        "np.maximum(np.arange(1 + own.size - losses.size, 1 + own.size), 1)",
        (DISCRETE,),
    ),
    Mutation(
        "a bounded range is taken for half of one",
        "app/accounting/pld/pairs.py",
        "        upper, lower = (epsilon - at) / 2, (epsilon + at) / 2\n",
        "        upper, lower = (epsilon - at) / 4, (epsilon + at) / 4\n",
        (PAIRS, EVENTS),
    ),
    Mutation(
        "a mixture gives the record more than its share",
        "app/accounting/pld/pairs.py",
        "        below, above = (1 - q) * inner.q_below",
        "        below, above = (1 - q * q) * inner.q_below",
        (PAIRS, EVENTS),
    ),
    Mutation(
        "the epsilon found is not checked",
        "app/accounting/pld/plans.py",
        "    while found < inf and total.log_delta(found) > goal:\n",
        "    while found < inf and total.log_delta(found) > goal + 1:\n",
        (PLANS,),
    ),
    Mutation(
        "steps of equal noise are charged once",
        "app/accounting/formulas/noise_schedules.py",
        "    totals = np.add.reduceat(counts, first_of_equals)\n",
        "    totals = counts[first_of_equals]\n",
        (EVENTS, "tests/accounting/test_noise_schedules.py"),
    ),
    Mutation(
        "own deltas stay within the reading's delta",
        "app/service/planning/costs.py",
        "    left = remaining_delta(delta, total.delta)\n",
        "    left = delta\n",
        (PLANNING,),
    ),
    Mutation(
        "a reading may take any time",
        "app/accounting/pld/composition.py",
        "        spend(int(DELTA + DELTA_EACH * self.numbers.size))\n",
        "",
        (WORK,),
    ),
    Mutation(
        "pairs of masses prove too much",
        "app/accounting/pld/frequencies.py",
        "counts @ squares * STEEPNESS *",
        "counts @ squares * 30 *",
        (FREQUENCIES,),
    ),
    Mutation(
        "a frequency does not change between points of a grid",
        "app/accounting/pld/frequencies.py",
        "scipy.fft.rfft(folded)) + change[:, np.newaxis])",
        "scipy.fft.rfft(folded)) / 4)",
        (FREQUENCIES,),
    ),
    Mutation(
        "a reading forgets pure guarantees",
        "app/accounting/pld/readings.py",
        "        return min(found, pure_epsilon(self._directions[0].worst_loss(count), delta))\n",
        "        return found\n",
        (READINGS,),
    ),
    Mutation(
        "a reading is made in one direction",
        "app/accounting/pld/readings.py",
        "for each in self._directions]",
        "for each in self._directions[-1:]]",
        (READINGS,),
    ),
    Mutation(
        "a plan's beginning is looked at in one direction",
        "app/accounting/pld/prefixes.py",
        "    for prefixes in both_directions(parts):\n        most =",
        "    for prefixes in both_directions(parts)[-1:]:\n        most =",
        (PREFIXES,),
    ),
    Mutation(
        "only the last part of a plan takes delta",
        "app/accounting/pld/prefixes.py",
        "self.before[place] + self.each[place] * over\n",
        "self.each[place] * over\n",
        (PREFIXES,),
    ),
    Mutation(
        "pure guarantees are rounded like others",
        "app/accounting/pld/prefixes.py",
        "    return 0.0 if pure <= epsilon else -expm1",
        "    return -expm1",
        (PREFIXES,),
    ),
    Mutation(
        "a sample covers a larger one",
        "app/accounting/pld/domination.py",
        " and pair.sampling_probability >= other.sampling_probability\n",
        "\n",
        (DOMINATION, PLAN_FILTER),
    ),
    Mutation(
        "more noise covers less",
        "app/accounting/pld/domination.py",
        "            found = z <= w\n",
        "            found = z >= w\n",
        (DOMINATION, PLAN_FILTER),
    ),
    Mutation(
        "mechanisms are compared in one direction",
        "app/accounting/pld/domination.py",
        "    return _dominates(stronger.removal, weaker.removal) and _dominates(stronger.addition, weaker.addition)\n",
        "    return _dominates(stronger.removal, weaker.removal)\n",
        (DOMINATION,),
    ),
    Mutation(
        "what a plan does not cover is not counted",
        "app/ledger/plan_filter.py",
        "        total[0] = 1\n",
        "",
        (PLAN_FILTER,),
    ),
    Mutation(
        "a plan that is over covers again",
        "app/ledger/plan_filter.py",
        "        if taken > there:\n            return -1\n",
        "",
        (PLAN_FILTER,),
    ),
    Mutation(
        "a charge counts for its own place of the chain only",
        "app/ledger/plan_filter.py",
        "                total[begin : begin + weakest + 1] = [1] * (weakest + 1)\n",
        "                total[begin + weakest] = 1\n",
        (PLAN_FILTER,),
    ),
    Mutation(
        "a point of a trajectory has the limit of an earlier one",
        "app/service/planning/trajectories.py",
        "accumulate((required.get(at, inf) for at in reversed(range(len(places)))), min))[::-1]",
        "accumulate((required.get(at, 0.0) for at in range(len(places))), max))",
        (TRAJECTORIES,),
    ),
    Mutation(
        "the orders are not asked where they are better",
        "app/service/planning/trajectories.py",
        "self.knots[place].epsilon < known.get(place, unknown)",
        "not known",
        (TRAJECTORIES,),
    ),
    Mutation(
        "a trajectory's plan has the delta of its mechanisms, too",
        "app/service/planning/declared_plans.py",
        "            part, room = self._parts_of_delta(limit, items, total)\n",
        "            part, room = DECLARED_SHARE * delta, total.delta\n",
        (TRAJECTORIES,),
    ),
    Mutation(
        "a whole schedule is one step of a plan",
        "app/ledger/plan_filter.py",
        "            return steps[parts[event]]\n",
        "            return count\n",
        (PLAN_FILTER,),
    ),
    Mutation(
        "the frequencies of a loss distribution are not counted as work",
        "app/accounting/pld/composition.py",
        "        spend(int(DELTA + DELTA_EACH * self.numbers.size))\n",
        "",
        (WORK,),
    ),
)
