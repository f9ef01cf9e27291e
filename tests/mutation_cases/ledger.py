"""Rules of the accounting and of the ledger."""

from tests.mutation_cases.case import Mutation

MODEL = "tests/reliability/test_state_machine.py"
ADMISSION = "tests/ledger/test_admission.py"
CURVES = "tests/accounting/test_curves.py"
RELATIONS = "tests/accounting/test_relation_table.py"
COUNTING = "tests/ledger/test_counting.py"


CASES = (
    Mutation(
        "an ancestor is skipped by the decision",
        "app/ledger/admission.py",
        "remaining, binding = min_repetitions(accounts, (new,), steps[-1].curve)",
        "remaining, binding = min_repetitions(accounts[1:], (new,), steps[-1].curve)",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "an ancestor is skipped by the charge",
        "app/ledger/admission.py",
        "afterwards = tuple(account.charged(new) for account in accounts)",
        "afterwards = (accounts[0], *(account.charged(new) for account in accounts[1:]))",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "one step too many is admitted",
        "app/ledger/admission.py",
        "overdrawn=remaining < 0",
        "overdrawn=remaining < -1",
        (ADMISSION, MODEL),
    ),
    Mutation(
        "what is held does not count",
        "app/ledger/filters.py",
        "        for curve in taken[1:]:\n",
        "        for curve in taken[2:]:\n",
        ("tests/ledger", MODEL),
    ),
    Mutation(
        "curves are rounded down",
        "app/accounting/curves.py",
        "units = np.ceil(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)",
        "units = np.floor(np.minimum(rdp, EXHAUSTED * UNIT) * SAFETY / UNIT)",
        (CURVES,),
    ),
    Mutation(
        "thresholds are rounded up",
        "app/accounting/conversion.py",
        "units = np.floor((epsilon + reward - price - error) / UNIT)",
        "units = np.ceil((epsilon + reward - price + error) / UNIT)",
        ("tests/accounting/test_conversion.py", "tests/ledger/test_filters.py"),
    ),
    Mutation(
        "under replace_one the largest part alone counts",
        "app/ledger/accounts.py",
        "self.partitions_per_unit * (2 if self.relation is NeighboringRelation.REPLACE_ONE else 1)",
        "self.partitions_per_unit",
        ("tests/ledger/test_composition.py", "tests/api/test_account_trees.py"),
    ),
    Mutation(
        "a part that is over the limit stops itself only",
        "app/ledger/accounts.py",
        "room = np.where(room < 0, room, EXHAUSTED)",
        "room = np.full_like(room, EXHAUSTED)",
        ("tests/ledger/test_composition.py", "tests/api/test_account_trees.py"),
    ),
    Mutation(
        "a policy under another makes it looser",
        "app/ledger/policies.py",
        "    return reduce(stricter, further, base)",
        "    return stricter(base, under[-1]) if under else base",
        ("tests/ledger/test_policies.py",),
    ),
    Mutation(
        "a sample of clients that are seen to answer is amplified",
        "app/accounting/poisson_rdp.py",
        "    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:\n        return True\n",
        "    if relation is not NeighboringRelation.REPLACE_ONE:\n        return True\n",
        (RELATIONS, "tests/accounting/test_sampling_events.py", "tests/ledger/test_counterexample.py"),
    ),
    Mutation(
        "the largest loss of a client that is seen to answer is amplified",
        "app/accounting/rdp.py",
        "np.where(orders <= HIGHEST, replace_sampled_rdp(q, taken.nats(), orders), taken.nats())",
        "np.where(orders <= HIGHEST, replace_sampled_rdp(q, taken.nats(), orders), q * taken.nats())",
        (RELATIONS, "tests/accounting/test_sampling_events.py"),
    ),
    Mutation(
        "a mechanism on a sample never fails with its own delta",
        "app/accounting/rdp.py",
        "max(q * taken.delta_value(), float_info.min) if taken.delta else 0.0",
        "max(q * q * taken.delta_value(), float_info.min) if taken.delta else 0.0",
        (RELATIONS, "tests/accounting/test_sampling_events.py"),
    ),
    Mutation(
        "a sample takes one curve, however many lie in it",
        "app/accounting/events/base.py",
        "        return sum(child.curve_count() for child in child_events(self)) or 1",
        "        return 1",
        ("tests/accounting/test_events.py",),
    ),
    Mutation(
        "steps that do not bound removal are charged where units leave their parts",
        "app/service/charging/decision.py",
        "    require_bounded_on_removal(path, [step.event for step in steps])\n",
        "",
        ("tests/api/test_removal.py",),
    ),
    Mutation(
        "plans that do not bound removal are set aside where units leave their parts",
        "app/service/reservations.py",
        "    require_bounded_on_removal(path, events)\n",
        "",
        ("tests/api/test_removal.py",),
    ),
    Mutation(
        "runs that do not bound removal are registered where units leave their parts",
        "app/service/governance/run_approvals.py",
        "    require_bounded_on_removal(path, declared)\n",
        "",
        ("tests/api/test_removal.py",),
    ),
    Mutation(
        "workloads that do not bound removal are planned where units leave their parts",
        "app/service/accounts/spec.py",
        "    require_bounded_on_removal(path, planned)\n",
        "",
        ("tests/api/test_removal.py",),
    ),
    Mutation(
        "only the event itself is asked whether it bounds removal",
        "app/accounting/events/composite.py",
        "for part in child_events(event) if (found",
        "for part in child_events(event)[:0] if (found",
        ("tests/api/test_removal.py",),
    ),
    Mutation(
        "what rounding takes from the parts of delta goes into the reserve",
        "app/ledger/limit_changes.py",
        "    changed = FilterWeights(weights.indices, parts[:-1], parts[-1])",
        "    changed = FilterWeights.of(after.delta, weights.indices, parts[:-1])",
        ("tests/ledger/test_limits.py",),
    ),
    Mutation(
        "the virtual steps of a completed tree do not count",
        "sdk/src/epsilon_ledger/_wire/event_factories.py",
        "1 << (steps - 1).bit_length()",
        "(1 << (steps - 1).bit_length()) - 1",
        ("tests/accounting/test_trees.py",),
    ),
    Mutation(
        "a sweep has as many trials as are expected",
        "app/accounting/formulas/repeat_and_select.py",
        "    return above",
        "    return round(mean)",
        ("tests/accounting/test_run_count_sampling.py",),
    ),
    Mutation(
        "what was counted is forgotten",
        "app/ledger/counting.py",
        "max(known.most - after, known.endless)",
        "max(known.most, known.endless)",
        (COUNTING,),
    ),
    Mutation(
        "counts pass a threshold without an alert",
        "app/ledger/counting.py",
        "after > known.unannounced",
        "False",
        (COUNTING,),
    ),
    Mutation(
        "a count ignores the event's delta",
        "app/ledger/counting.py",
        " and not curve.delta",
        "",
        (COUNTING,),
    ),
    Mutation(
        "a counted reading keeps the old limit",
        "app/ledger/counting.py",
        "known.governing is not governing or ",
        "",
        (COUNTING,),
    ),
    Mutation(
        "floats are counted beyond what they hold",
        "app/ledger/counting.py",
        " and int(cost.max()) * last + int(before.max()) < _EXACT",
        "",
        (COUNTING,),
    ),
)
