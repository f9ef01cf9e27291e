"""Bounds on the joint spend of runs without approval."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import inf
from typing import Final

from sqlalchemy import Connection

from app.accounting.conversion import epsilon_of_curve
from app.accounting.orders import orders
from app.ledger.accounts import Account
from app.ledger.policies import Policy
from app.persistence.repositories import accounts
from app.persistence.repositories.unapproved import Unapproved, find_unapproved
from app.service.auth.request_context import RequestContext

_SUM: Final = Context(prec=60, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that a run would exceed.

    Args:
        path: account of the bound.
        bound: maximum epsilon of all runs without approval under it.
        others: epsilon of the other runs; infinity if one has reported an unbounded event.
        promised: most that the run may spend; may be infinity.
    """

    path: str
    bound: float
    others: float
    promised: float

    def facts(self) -> dict[str, object]:
        """Serialize for a proposal; infinity becomes null."""
        amounts = {"others": self.others, "promised": self.promised}
        told = {name: None if amount == inf else amount for name, amount in amounts.items()}
        return {"account": self.path, "bound": self.bound, **told}


def find_excess(
    tx: Connection, context: RequestContext, path: Sequence[Account], promised: float, *, raised: str | None = None
) -> Excess | None:
    """Find the first bound from the root that a run would exceed.

    A policy bounds the runs under its own account; the organisation's policy, those under each population. `raised` is
    the id of a registered run whose limit is raised: if it was approved before, no bound includes it, so any bound
    counts as exceeded. The organisation must be locked, so that no run is registered meanwhile.
    """
    for account in path:
        bound = _bound_at(account)
        if bound is None:
            continue
        counted = find_unapproved(tx, context.organisation_id, account.id)
        found = [each for each in counted if each.id != raised]
        others = _sum(_counted(tx, context, found))
        approved = raised is not None and len(found) == len(counted)
        if approved or _SUM.add(others, _exact(promised)) > _exact(bound):
            return Excess(account.path, bound, float(others), promised)
    return None


def _bound_at(account: Account) -> float | None:
    policies: Iterable[Policy | None] = (account.policy, account.organisation_policy)
    bounds = [each.max_unapproved_epsilon_per_budget for each in policies if each is not None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _counted(tx: Connection, context: RequestContext, found: Sequence[Unapproved]) -> list[float]:
    """Get the epsilon of runs, from balances only where decisions lack it."""
    counted = [each.counted(each.spent) for each in found if each.spent is not None]
    unsure = [each for each in found if each.spent is None]
    records = accounts.read_many(tx, context.organisation_id, [each.id for each in unsure]) if unsure else []
    own = {record.account.id: record.account for record in records}
    for each in unsure:
        account = own[each.id]
        # Without a limit of its own it has no filter: its curve is read at the smallest delta of its budgets.
        read = epsilon_of_curve(orders(account.grid_version), account.spent, each.delta).epsilon
        spent = 0.0 if account.spent.is_zero else read if account.limit is None else account.epsilon()
        counted.append(each.counted(spent))
    return counted


def _sum(epsilons: Iterable[float]) -> Decimal:
    """Add epsilons in decimal, rounded up: three limits of 0.1 make 0.3."""
    total = Decimal(0)
    for epsilon in epsilons:
        total = _SUM.add(total, _exact(epsilon))
    return total


def _exact(epsilon: float) -> Decimal:
    return Decimal(repr(epsilon))
