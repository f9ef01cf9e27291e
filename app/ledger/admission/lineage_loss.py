"""The loss to some runs alone, of all that were charged under an account."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.admission.composition import budgets_of
from app.ledger.filter.parallel_exposure import largest

_Tree = dict[str, dict[str, Account]]
"""The accounts under each account, by id."""


def loss_of_runs(account: Account, paths: Sequence[Sequence[Account]]) -> RdpCurve:
    """Compose what some runs have charged, as the account would if nothing else was charged (ADR 0017).

    Each run counts once, and of disjoint parts only those with the largest loss.

    Args:
        account: a population or a budget.
        paths: of the runs, each with its ancestors, and itself last; runs that lie elsewhere do not count.

    Returns:
        An upper bound for one unit of the account's population, without the usage of plans.
    """
    below: _Tree = {}
    for path in paths:
        for each in path[:-1]:
            if each.parent_id is not None:
                below.setdefault(each.parent_id, {})[each.id] = each
        for budget in budgets_of(path):
            below.setdefault(budget.id, {})[path[-1].id] = path[-1]
    return _loss(account, below)


def _loss(account: Account, below: _Tree) -> RdpCurve:
    """Compute the loss of an account: of a run, of disjoint parts, or of what adds up."""
    if account.kind is AccountKind.RUN:
        return account.spent.using({})
    zero = zero_curve(account.grid_version)
    if account.parts_that_count is not None:
        parts = [_loss(each, below) for each in below.get(account.id, {}).values()]
        return largest([zero, *parts], account.parts_that_count)
    total = zero
    for each in _adding_up(account, below).values():
        total += _loss(each, below)
    return total


def _adding_up(account: Account, below: _Tree) -> dict[str, Account]:
    """Find the runs and the topmost parallel accounts under a sequential account, each once."""
    found: dict[str, Account] = {}
    for each in below.get(account.id, {}).values():
        adds_up = each.kind is AccountKind.RUN or each.parts_that_count is not None
        found |= {each.id: each} if adds_up else _adding_up(each, below)
    return found
