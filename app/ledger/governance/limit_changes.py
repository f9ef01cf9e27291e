"""Change the limit of a live account while its filter stays (ADR 0020).

A lowered limit revokes reserved steps, newest reservations first (ADR 0026).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account, AccountKind, usage_of, zero_curve
from app.ledger.admission.admission import min_repetitions
from app.ledger.admission.composition import exposed
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit
from app.ledger.runs.reservations import Reservation, ReservedItem


def is_raised(before: Limit, after: Limit) -> bool:
    """Check whether the new limit may admit more, as one in another unit may."""
    return not before.has_rule_of(after) or after.value > before.value or after.delta > before.delta


def is_lowered(before: Limit, after: Limit) -> bool:
    """Check whether the new limit may admit less; a raise may do both, and so may another unit."""
    return not before.has_rule_of(after) or after.value < before.value or after.delta < before.delta


def with_limit(account: Account, limit: Limit, weights: FilterWeights | None) -> Account:
    """Copy an account with a new limit, its weights under it, and the next limit revision (ADR 0020)."""
    revision, version = account.limit_revision + 1, account.version + 1
    return replace(account, limit=limit, weights=weights, limit_revision=revision, version=version)


@dataclass(frozen=True, slots=True)
class ActiveReservation:
    """An active reservation under an account whose limit was lowered.

    Args:
        path: ids of the account and the accounts down to the run, by depth and id, the run last.
        lapsed: whether its lease has expired: it takes no further steps and is about to be forfeited.
    """

    reservation: Reservation
    path: tuple[str, ...]
    lapsed: bool


def revoked_reservations(
    limited: Account,
    under: Sequence[Account],
    reservations: Sequence[ActiveReservation],
    curves: Mapping[DpEvent, RdpCurve],
) -> list[Reservation]:
    """Revoke the steps of reservations that exceed a lowered limit.

    From the oldest reservation to the newest, each keeps as many of its next steps as fit with the spent loss and the
    steps kept so far. `under` has every account of the reservations' paths under it and all partitions of parallel
    ones; `reservations` all active reservations of its runs, oldest first. The result has the changed reservations.
    """
    tree = _Tree(limited, under)
    curves = tree.with_usage(curves)
    own = limited.kind is AccountKind.RUN  # a run's balance has spent its used steps; its ancestors hold them
    for active in reservations:
        items = active.reservation.items
        counts = [(0 if own else item.used) + (item.unused if active.lapsed else 0) for item in items]
        tree.hold(active, _cost(items, counts, curves, tree.zero))
    changed = []
    for active in reservations:
        items = active.reservation.items
        kept = [0] * len(items) if active.lapsed else tree.fitting(active, curves)
        tree.hold(active, _cost(items, kept, curves, tree.zero))
        after = tuple(replace(item, revoked=item.unused - keep) for item, keep in zip(items, kept, strict=True))
        if after != items:
            changed.append(replace(active.reservation, items=after))
    return changed


class _Tree:
    """The account and its descendants, holding only the reservations processed so far."""

    def __init__(self, limited: Account, under: Sequence[Account]) -> None:
        self.zero = zero_curve(limited.grid_version)
        self._accounts = {each.id: replace(each, held=self.zero, exposure=None) for each in (*under, limited)}
        parallel = {each.id for each in self._accounts.values() if each.partitions_per_unit is not None}
        self._parts = [each.id for each in self._accounts.values() if each.parent_id in parallel]

    def with_usage(self, curves: Mapping[DpEvent, RdpCurve]) -> dict[DpEvent, RdpCurve]:
        """Add to the costs of events what they use up of the accounts' plans."""
        return {event: curve.using(usage_of(self._accounts.values(), event)) for event, curve in curves.items()}

    def hold(self, active: ActiveReservation, cost: RdpCurve) -> None:
        """Hold the cost of a reservation."""
        if not cost.is_zero:
            for account in self._path(active):
                self._accounts[account.id] = replace(account.with_hold(cost), exposure=None)

    def fitting(self, active: ActiveReservation, curves: Mapping[DpEvent, RdpCurve]) -> list[int]:
        """Count the repetitions of each item that fit, up to the first incomplete item."""
        limited, pending, kept = self._path(active)[0], self.zero, []
        full = False
        for item in active.reservation.items:
            room = 0 if full else min_repetitions((limited,), (pending,), curves[item.event])[0]
            kept.append(min(item.left, max(0, room)))
            full = kept[-1] < item.left
            if kept[-1]:
                pending = pending + curves[item.event].times(kept[-1])
        return kept

    def _path(self, active: ActiveReservation) -> tuple[Account, ...]:
        path = [self._accounts[each] for each in active.path]
        return exposed(path, [self._accounts[each] for each in self._parts])


def _cost(
    items: Sequence[ReservedItem], counts: Sequence[int], curves: Mapping[DpEvent, RdpCurve], zero: RdpCurve
) -> RdpCurve:
    total = zero
    for item, count in zip(items, counts, strict=True):
        if count:
            total = total + curves[item.event].times(count)
    return total
