"""What a refused training still needs, for the search of alternatives."""

from collections.abc import Iterator, Sequence

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.admission.alternatives import RemainingTraining
from app.ledger.errors import PolicyViolationError
from app.ledger.governance.policy_checks import require_limit_allowed, sources_of
from app.ledger.runs.run import Run, remaining_steps
from app.ledger.settings.policies import effective
from app.ledger.settings.policy_rules import DeviationHandling
from app.service.charging.unit_of_work import UnitOfWork


def remaining_training(
    work: UnitOfWork, run: Run, path: Sequence[Account], requested: int, expected: int | None = None
) -> RemainingTraining:
    """Describe what a run still needs, as `remaining_steps`, as far as the policies of its path allow it.

    Args:
        work: with the populations of the path.
        run: the refused one.
        path: root to leaf.
        requested: number of refused steps.
        expected: number of all steps by the request; None: as the run declared.
    """
    own, sources = path[-1], sources_of(path)
    promised = run.declaration.expected_steps
    if effective(sources).deviations is DeviationHandling.REFUSE and None not in {expected, promised}:
        expected = min(each for each in (expected, promised) if each is not None)
    declared = run.event is not None or bool(own.planned)
    fixed = frozenset(_fixed_limits(work, path)) if sources else frozenset()
    return RemainingTraining(remaining_steps(run, requested, expected), declared, fixed)


def _fixed_limits(work: UnitOfWork, path: Sequence[Account]) -> Iterator[str]:
    """Find the accounts whose limit no change may raise: a policy above them forbids its delta, which would stay."""
    for account in path:
        if account.limit is None:
            continue
        above = [each for each in path if account is path[-1] or _is_at_or_above(each, account)]
        roots = [each for each in above if each.kind is AccountKind.POPULATION]
        try:
            for root in roots:
                size = work.record(root.id).population.size
                require_limit_allowed(sources_of(above), account.limit, size)
        except PolicyViolationError:
            yield account.id


def _is_at_or_above(account: Account, other: Account) -> bool:
    return account is other or other.path.startswith(f"{account.path}/")
