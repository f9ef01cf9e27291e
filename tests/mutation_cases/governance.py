"""Rules of limits, policies, proposals and experiments."""

from tests.mutation_cases.case import Mutation

CASES = (
    Mutation(
        "whoever proposes approves",
        "app/service/governance/proposals.py",
        "if heirs(tx, call.organisation_id, ours) & theirs or heirs(tx, call.organisation_id, theirs) & ours:",
        "if False:",
        ("tests/api/test_limits.py", "tests/api/test_approvals.py"),
    ),
    Mutation(
        "one person loosens a policy",
        "app/service/governance/policies.py",
        "if before.loosened(request.policy):",
        "if False:",
        ("tests/api/test_loosening.py",),
    ),
    Mutation(
        "a rule that cannot be compared is no looser",
        "app/ledger/policies.py",
        "if first is not None and (second is None or choose(first, second) != second):",
        "if first is not None and (second is None or choose(first, second) == first != second):",
        ("tests/ledger/test_policies.py",),
    ),
    Mutation(
        "a rule that is left out is not loosened",
        "app/ledger/policies.py",
        "if first is not None and (second is None or choose(first, second) != second):",
        "if first is not None and second is not None and choose(first, second) != second:",
        ("tests/api/test_loosening.py",),
    ),
    Mutation(
        "a policy that was changed since is loosened all the same",
        "app/service/governance/policies.py",
        'if before.revision != facts["revision"]:',
        "if False:",
        ("tests/api/test_loosening.py",),
    ),
    Mutation(
        "one person raises a run past the threshold of approvals",
        "app/service/governance/limits.py",
        "if path[-1].kind is AccountKind.RUN and needs_approval(path, Size(limit.epsilon, limit.delta)):",
        "if False:",
        ("tests/api/test_approvals.py",),
    ),
    Mutation(
        "who is bound to an account decides about the organisation",
        "app/service/governance/proposals.py",
        "        call.require_reach([])\n",
        "        pass\n",
        ("tests/api/test_loosening.py",),
    ),
    Mutation(
        "a sweep's run takes further steps",
        "app/service/experiments.py",
        "    work.move(call.organisation_id, replace(charged, status=RunStatus.COMPLETED))\n",
        "",
        ("tests/api/test_experiments.py",),
    ),
    Mutation(
        "one person raises a limit",
        "app/service/governance/limits.py",
        "if is_raised(limit, request.limit) and not one_is_enough(call, [each.account for each in path]):",
        "if False:",
        ("tests/api/test_limits.py",),
    ),
    Mutation(
        "a run above the threshold begins at once",
        "app/service/registering.py",
        "RunStatus.PENDING if needs_approval(path, size) else RunStatus.ACTIVE",
        "RunStatus.ACTIVE",
        ("tests/api/test_approvals.py",),
    ),
    Mutation(
        "a sweep that does not fit stays",
        "app/service/experiments.py",
        "            before.rollback()\n",
        "            before.commit()\n",
        ("tests/api/test_experiments.py",),
    ),
    Mutation(
        "another limit of a run is held against its first population only",
        "app/service/governance/limits.py",
        "    for population in _populations(path):\n        after =",
        "    for population in _populations(path)[:1]:\n        after =",
        ("tests/api/test_limits.py",),
    ),
)
