"""Rules of discrete Laplace noise, permute and flip, mixtures of Gaussians, cut samples and repeated draws."""

from tests.mutation_cases.case import Mutation

DISCRETE = "tests/accounting/test_discrete_laplace.py"
DOMINATION = "tests/accounting/pld/test_domination.py"
EVENTS = "tests/accounting/pld/test_events.py"
FORMULAS = "tests/accounting/test_formulas.py"
GROUPS = "tests/accounting/test_group_privacy.py"
MIXTURES = "tests/accounting/test_gaussian_mixture.py"
PARITY = "tests/accounting/test_parity.py"
RANDOM_BATCHES = "tests/accounting/test_random_batches.py"
RELATIONS = "tests/accounting/test_relation_table.py"
WORK = "tests/accounting/test_work.py"

CASES = (
    Mutation(
        "a mixture's addition stands for its removal",
        "app/accounting/pld/events.py",
        "{GaussianMixturePair(mixture, removes=True): 1}",
        "{GaussianMixturePair(mixture, removes=False): 1}",
        (EVENTS,),
    ),
    Mutation(
        "a cut sample is charged as one that is not",
        "app/accounting/pld/events.py",
        "(shares.cut, shares.kept, replaced))",
        "(shares.cut, shares.kept, added))",
        (EVENTS, RANDOM_BATCHES),
    ),
    Mutation(
        "a replaced record moves discrete Laplace noise once",
        "app/accounting/base_rdp.py",
        "discrete_laplace_rdp(event.noise_parameter, event.sensitivity * int(sensitivity(relation)), orders)",
        "discrete_laplace_rdp(event.noise_parameter, event.sensitivity, orders)",
        (FORMULAS, RELATIONS),
    ),
    Mutation(
        "the largest loss of discrete Laplace noise is that of a move by one",
        "app/accounting/base_rdp.py",
        "    return event.noise_parameter * event.sensitivity * sensitivity(relation)\n",
        "    return event.noise_parameter\n",
        (RELATIONS,),
    ),
    Mutation(
        "fewer losses of discrete Laplace noise weigh no more than they did",
        "app/accounting/formulas/discrete_laplace.py",
        "    halves = np.tanh(noise_parameter * (np.diff(x, prepend=-np.inf, append=np.inf) / 2))\n",
        "    halves = np.tanh(np.minimum(np.diff(x, prepend=-np.inf, append=np.inf), 1) * noise_parameter / 2)\n",
        (DISCRETE,),
    ),
    Mutation(
        "the pair of discrete Laplace noise is that of a missing record",
        "app/accounting/pld/events.py",
        "DiscreteLaplacePair(event.noise_parameter, event.sensitivity * int(sensitivity(relation)))",
        "DiscreteLaplacePair(event.noise_parameter, event.sensitivity)",
        (EVENTS,),
    ),
    Mutation(
        "discrete Laplace noise of any parameter covers less of it",
        "app/accounting/pld/domination.py",
        "pair.noise_parameter == other.noise_parameter and",
        "pair.noise_parameter <= other.noise_parameter and",
        (DOMINATION,),
    ),
    Mutation(
        "permute and flip costs as little as the exponential mechanism",
        "app/accounting/base_rdp.py",
        "    return permute_and_flip_rdp(event.epsilon, orders)\n",
        "    return bounded_range_rdp(event.epsilon, orders)\n",
        (FORMULAS, RELATIONS, PARITY),
    ),
    Mutation(
        "the pair of permute and flip is that of a bounded range",
        "app/accounting/pld/events.py",
        "LaplacePair(noise_of_pure_loss(_checked(event.epsilon)))",
        "BoundedRangePair(_checked(event.epsilon))",
        (EVENTS,),
    ),
    Mutation(
        "a mixture on a sample costs as on everybody's records without its share at 0",
        "app/accounting/poisson_rdp.py",
        "gaussian_mixture_rdp(mixture_of(event, sampling_probability), orders)",
        "gaussian_mixture_rdp(mixture_of(event, sampling_probability / 2), orders)",
        (RELATIONS, PARITY),
    ),
    Mutation(
        "a replaced record of a mixture moves the sum once",
        "app/accounting/formulas/gaussian_mixture.py",
        "    noises = [mixture.noise_multiplier / (2 * group[-1][0]) for group in groups]\n",
        "    noises = [mixture.noise_multiplier / group[-1][0] for group in groups]\n",
        (FORMULAS, MIXTURES),
    ),
    Mutation(
        "many distances of a replaced record become fewer smaller ones",
        "app/accounting/formulas/gaussian_mixture.py",
        "    noises = [mixture.noise_multiplier / (2 * group[-1][0]) for group in groups]\n",
        "    noises = [mixture.noise_multiplier / (2 * group[0][0]) for group in groups]\n",
        (MIXTURES,),
    ),
    Mutation(
        "a mixture has no orders beyond its bend",
        "app/accounting/formulas/quadrature_sums.py",
        "        sums[near:] = sums[near:] * np.exp(log_scales[near:] - common) + np.exp(log_right - common)\n",
        "        sums[near:] = sums[near:] * np.exp(log_scales[near:] - common)\n",
        (MIXTURES,),
    ),
    Mutation(
        "a group draws the distance of one record",
        "app/accounting/group_privacy.py",
        "    for _ in range(size):\n",
        "    for _ in range(1):\n",
        (GROUPS, RELATIONS),
    ),
    Mutation(
        "a mixture with other distances is covered by one with less noise",
        "app/accounting/pld/domination.py",
        "found = alike and one.noise_multiplier <= two.noise_multiplier",
        "found = one.noise_multiplier <= two.noise_multiplier",
        (DOMINATION,),
    ),
    Mutation(
        "a record that is kept of a cut sample takes nobody's place",
        "app/accounting/formulas/random_batches.py",
        "(shares.either, q, replaced), (shares.cut, shares.kept, replaced))",
        "(shares.either, q, added), (shares.cut, shares.kept, added))",
        (RELATIONS,),
    ),
    Mutation(
        "a sample is cut as seldom as with one record less",
        "app/accounting/formulas/random_batches.py",
        "        return cls(1 - more.cut, max(more.cut - fewer.cut, 0.0), fewer.cut, fewer.kept)\n",
        "        return cls(1 - fewer.cut, 0.0, fewer.cut, fewer.kept)\n",
        (RELATIONS, RANDOM_BATCHES),
    ),
    Mutation(
        "a record of a cut sample is kept as seldom as of the largest one",
        "app/accounting/formulas/random_batches.py",
        "        kept = most / (others + 1) * _at_least(most + 1, others + 1, q) / cut\n",
        "        kept = most / (others + 1) * q\n",
        (RANDOM_BATCHES,),
    ),
    Mutation(
        "a replaced record of a cut sample counts where nothing is cut",
        "app/accounting/formulas/random_batches.py",
        "    if truncation.cut:\n        parts.append(",
        "    if False:\n        parts.append(",
        (RELATIONS, RANDOM_BATCHES),
    ),
    Mutation(
        "a record that is drawn twice moves the sum once",
        "app/accounting/formulas/random_batches.py",
        "[noise_multiplier / k for k in counts]",
        "[noise_multiplier for k in counts]",
        (RELATIONS, RANDOM_BATCHES),
    ),
    Mutation(
        "more occurrences than are accounted for have no delta",
        "app/accounting/rdp.py",
        "    failure = failure_with_replacement(size, places)\n",
        "    failure = 0.0\n",
        (RANDOM_BATCHES,),
    ),
    Mutation(
        "a batch with replacement is compared under every relation",
        "app/accounting/rdp.py",
        "    if relation is not NeighboringRelation.REPLACE_ONE:\n        raise UnsupportedEventError(\n"
        '            f"sampled_with_replacement is',
        '    if False:\n        raise UnsupportedEventError(\n            f"sampled_with_replacement is',
        (RELATIONS, RANDOM_BATCHES),
    ),
    Mutation(
        "a group is no more work than a record",
        "app/accounting/work.py",
        "        return for_group(event.event, event.group_size)\n",
        "        return event.event\n",
        (WORK,),
    ),
)
