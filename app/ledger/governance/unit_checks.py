"""Refuse events that a limit's unit has no value for, and changes of a unit in use (ADR 0052)."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation, child_events, type_name, without_no_ops
from app.accounting.exact_losses import UNBOUNDED_LOSSES
from app.accounting.rdp import exact_losses
from app.ledger.accounts.account import Account
from app.ledger.errors import AccountStateConflictError
from app.ledger.filter.limits import Limit, Unit
from app.ledger.wording import joined

_PURE: Final = Limit(1.0, 0.0)
_UNITS: Final = {
    "epsilon with delta 0": _PURE,
    "rho": Limit(1.0, 0.0, Unit.RHO),
    "rho with a delta": Limit(1.0, 1e-6, Unit.RHO),
    "mu": Limit(1.0, 0.0, Unit.MU),
    "epsilon with a positive delta": Limit(1.0, 1e-6),
}
"""A limit of each unit, by its name."""


def require_priced(path: Iterable[Account], events: Sequence[DpEvent]) -> None:
    """Raise UnsupportedEventError for events that have no value in the unit of a limit of a path."""
    for account in path:
        if account.limit is None or not account.limit.is_exact:
            continue
        for event in events:
            reason = why_unpriced(account.limit, event, account.relation)
            if reason is not None:
                raise UnsupportedEventError(f"{account.path} has a limit in {account.limit.bounded}, and {reason}")


def why_unpriced(limit: Limit, event: DpEvent, relation: NeighboringRelation) -> str | None:
    """Say why an event has no value in the unit of a limit, and which units it has one in; None: it has one."""
    if _is_priced(limit, event, relation):
        return None
    released = without_no_ops(event)
    losses = exact_losses(released, relation)
    if losses[limit.coordinate] != UNBOUNDED_LOSSES[limit.coordinate]:
        lacking = "has a delta of its own, for which that leaves nothing"
    elif limit.coordinate is _PURE.coordinate:
        lacking = "has no bound on its privacy loss"
    else:
        lacking = f"has no {limit.unit} that is exact"
    able = [name for name, each in _UNITS.items() if _is_priced(each, event, relation)]
    name = type_name(_culprit(limit, released, relation))
    return f"{name} {lacking} under {relation}. It can be charged to limits in {joined(able, 'or')}."


def _culprit(limit: Limit, event: DpEvent, relation: NeighboringRelation) -> DpEvent:
    """Find the innermost event without a value; the event itself if its parts have one."""
    for part in child_events(event):
        if not _is_priced(limit, part, relation):
            return _culprit(limit, part, relation)
    return event


@lru_cache(maxsize=4096)
def _is_priced(limit: Limit, event: DpEvent, relation: NeighboringRelation) -> bool:
    if not limit.is_exact:
        return True
    released = without_no_ops(event)
    if _has_own_delta(released) and not limit.delta:
        return False
    return exact_losses(released, relation)[limit.coordinate] != UNBOUNDED_LOSSES[limit.coordinate]


def _has_own_delta(event: DpEvent) -> bool:
    parts = child_events(event)
    return any(map(_has_own_delta, parts)) if parts else bool(getattr(event, "delta", 0.0))


def require_unit_changeable(account: Account, limit: Limit) -> None:
    """Raise AccountStateConflictError if a limit changes the unit of an account in use.

    The rule of another unit would be chosen from outputs, and the losses in it were never bounded.
    """
    before = account.limit
    if before is None or before.has_rule_of(limit) or account.is_untouched:
        return
    raise AccountStateConflictError(
        f"{account.path} has a limit in {before.bounded}, and the new one is in {limit.bounded}: the unit of a limit "
        "can change only while nothing is spent or reserved. Send a limit in the same unit, or create another account.",
        account=account.id,
        account_path=account.path,
    )
