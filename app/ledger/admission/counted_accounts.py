"""Repeated charges of one event, decided by counting (ADR 0033).

Adding a curve to an account and comparing it with the filter's bounds takes many times as long as adding 1 to a count.
For an account and an event without a delta of its own, let room_j be what order j has left and c_j the cost. After k
repetitions a further n of them fit iff at some order n c_j <= room_j - k c_j, that is iff

    n <= max(most - k, endless)

where most is the largest floor(room_j / c_j) with c_j > 0, and endless the largest room_j with c_j = 0.

The plan is one more coordinate: while it covers all that was charged, n fits also if n <= planned - k, with the number
of repetitions that it covers. A charge that would leave the plan is for the rule.

A reservation of the run is one more bound: repetitions of it are moved from held to spent on the run's account
alone, and n fits if n <= left - k, with what is left of the event in the reservation.

All numbers are integers, so this is the admission rule and not an approximation of it. A count can only admit, with
the same result as the rule in `admission`. The rule decides every other charge, and it alone refuses.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from app.accounting.curves import RdpCurve, Usage
from app.accounting.events import fingerprint
from app.ledger.accounts.account import usage_of
from app.ledger.accounts.account_records import (
    MOST_EVENTS,
    AccountRecord,
    Counts,
    UncompactedCharges,
    added_counts,
)
from app.ledger.admission.admission import Admission, governing_of
from app.ledger.admission.epsilons_ahead import NONE_AHEAD, EpsilonAtOrder, EpsilonsAhead
from app.ledger.admission.repetition_room import Room, UsedShares
from app.ledger.filter.parallel_exposure import is_exact, without
from app.ledger.plan.plan_filter import repeated
from app.ledger.step_events import PricedStep


class CountMark(NamedTuple):
    """A counted account at some time."""

    record: AccountRecord
    charged: Mapping[str, tuple[RdpCurve, int]]
    event: str
    repetitions: int
    version: int
    updated_at: datetime


@dataclass(slots=True)
class CountedAccount:
    """An account and the repetitions of events that were charged to it since its curves were added up.

    It is changed by the transaction that charges; others get a copy.

    Args:
        record: the account before these charges.
        charged: cost and repetitions by event, without those that `count` has; never changed in place.
        event: fingerprint of the current event, the only one that is counted now.
        curve: its cost, and `cost` the same with its usage of plans that the account counts.
        count: its repetitions since it is the current one.
        version: of the account after all charges, each of which made a new one.
        updated_at: time of the last one, or of the record.
        from_held: whether all these repetitions are taken out of what the account holds.
        earlier: its repetitions before, which `charged` has.
        room: before the repetitions of the current event; None if the rule must decide.
        shares: for the used share, of the same; None until it is asked for.
        ahead: of a run, the epsilons that are known for the next charges, for repetitions since the record.
        place: of them, the first that may hold.
        at_order: of a run, how its epsilon follows from the loss at one order, if none is known ahead.
    """

    record: AccountRecord
    charged: Mapping[str, tuple[RdpCurve, int]] = field(default_factory=dict)
    event: str = ""
    curve: RdpCurve | None = None
    cost: RdpCurve | None = None
    count: int = 0
    version: int = field(init=False)
    updated_at: datetime = field(init=False)
    earlier: int = 0
    from_held: bool = False
    room: Room | None = field(default=None, repr=False)
    shares: UsedShares | None = field(default=None, repr=False)
    ahead: EpsilonsAhead = NONE_AHEAD
    place: int = 0
    at_order: EpsilonAtOrder | None = None

    def __post_init__(self) -> None:
        """Begin at the record's version."""
        self.version, self.updated_at = self.record.account.version, self.record.updated_at

    @property
    def uncompacted(self) -> UncompactedCharges:
        """The charges since the stored curves, with these."""
        found = dict(self.record.uncompacted)
        for event, (_, count) in self._counts().items():
            times, taken = found.get(event, (0, 0))
            found[event] = (times + count, taken + count if self.from_held else taken)
        return found

    @property
    def usage(self) -> tuple[Usage, Usage]:
        """Usage of plans by what is spent and by what is held, with these charges."""
        spent, held = self.record.account.spent.used, self.record.account.held.used
        if spent:
            for cost, count in self._counts().values():
                spent = _used_further(spent, cost, count)
                held = _used_further(held, cost, -count) if self.from_held else held
        return spent, held

    def copy(self) -> "CountedAccount":
        """Copy the counts, for a transaction of its own."""
        return copy(self)

    def matches(self, version: int, updated_at: datetime, quarantine: str | None) -> bool:
        """Check whether the database has the same version; after a restore a version alone may repeat."""
        return self.version == version and self.updated_at == updated_at and self.record.quarantine == quarantine

    def settled(self) -> AccountRecord:
        """Add the counted charges to the account's curves, and begin to count anew."""
        if self.version != self.record.account.version:
            account, counts = self.record.account, self._counts()
            spent, held = self._spent(counts), account.held
            for cost, count in counts.values() if self.from_held else ():
                held = without(held, cost.times(count))
            self.record = replace(
                self.record,
                account=replace(account, spent=spent, held=held, version=self.version),
                updated_at=self.updated_at,
                uncompacted=self.uncompacted,
            )
            self._forget_counts()
        return self.record

    def _forget_counts(self) -> None:
        self.charged, self.event, self.curve, self.cost = {}, "", None, None
        self.count = self.earlier = 0
        self.ahead, self.place = NONE_AHEAD, 0
        self.room = self.shares = self.at_order = None

    def is_current(self, event: str, curve: RdpCurve, *, from_held: bool) -> bool:
        """Check whether this event is the one that is counted, and from where."""
        return self.curve is curve and self.event == event and self.from_held is from_held

    def fits(self, number: int) -> int:
        """Count the repetitions of the event that would still fit after `number`; negative to ask the rule."""
        return -1 if self.room is None else self.room.left_after(self.count + number)

    def charge(self, number: int, now: datetime) -> None:
        """Charge repetitions that fit."""
        self.count += number
        self.version += 1
        self.updated_at = now

    @property
    def mark(self) -> CountMark:
        """What `undo` needs to take back the charges that follow."""
        return CountMark(self.record, self.charged, self.event, self.count, self.version, self.updated_at)

    def undo(self, mark: CountMark) -> bool:
        """Take back what was charged since a mark; false if it is more than repetitions of one event."""
        if self.record is not mark.record or self.charged is not mark.charged or self.event != mark.event:
            return False
        self.count, self.version, self.updated_at = mark.repetitions, mark.version, mark.updated_at
        self.place = 0
        return True

    def used(self, number: int) -> float:
        """Compute the used share after a further `number` of repetitions, as `Account.used` does."""
        if self.shares is None:
            assert self.cost is not None, "its event is counted"
            account = self.record.account
            spent = account.counting(self._spent(self.charged))
            self.shares = UsedShares.of(account, spent, self.cost, self.room)
        return self.shares.after(self.count + number)

    def epsilon(self, number: int) -> float | None:
        """Get a run's epsilon after a further `number` of repetitions; None if it is not known ahead."""
        repetitions = self.earlier + self.count + number
        most = self.ahead.most.get(self.event, ())
        while self.place < len(most):
            if repetitions <= most[self.place]:
                return self.ahead.epsilons[self.place]
            self.place += 1
        if self.at_order is None or self.cost is None:
            return None
        return self.at_order.after(self.cost, self.count + number)

    def counts_after(self, number: int) -> Counts | None:
        """Count all charges by event after a further `number` of repetitions; None if they are not counted."""
        since = {event: count for event, (_, count) in self.charged.items()}
        since[self.event] = self.earlier + self.count + number
        return added_counts(self.record.counts, since)

    def look_ahead(self, found: EpsilonsAhead) -> None:
        """Take the epsilons that were found for counts of all charges."""
        self.ahead, self.place, self.at_order = found.less(self.record.counts or {}), 0, None

    def choose_order(self, number: int, delta: float) -> None:
        """Choose the order that tells a run's epsilon at delta after a further `number` of repetitions."""
        assert self.cost is not None, "its event is counted"
        account, count = self.record.account, self.count + number
        spent = self._spent(self.charged) + self.cost.times(count)
        found = EpsilonAtOrder.of(spent, account.grid_version, delta)
        self.ahead, self.place, self.at_order = NONE_AHEAD, 0, found and found.charged(self.cost, -count)
        if found is None:
            epsilon = replace(account, spent=spent).rdp_epsilon(delta)
            self.ahead = EpsilonsAhead({self.event: [self.earlier + count]}, [epsilon])

    def _is_plain(self, event: str) -> bool:
        """Check that only the limit and window decide, and that the curves need not be written."""
        account, known = self.record.account, self.record.uncompacted
        if self.record.must_compact or len({*known, *self.charged, self.event, event} - {""}) > MOST_EVENTS:
            return False
        unrestricted = self.record.quarantine is None and account.policy is None and account.organisation_policy is None
        return unrestricted and account.partitions_per_unit is None

    def make_current(self, event: str, curve: RdpCurve, used: Usage, *, from_held: bool) -> bool:
        """Count another event from now on; false if the rule must decide on it."""
        if from_held is not self.from_held:
            self.settled()
            self._forget_counts()
            self.from_held = from_held
        watermark = self.record.watermark
        known = event in self.charged or self._is_plain(event)
        if (
            watermark is None
            or curve.delta
            or not known
            or (from_held and not is_exact(self.record.account.held, [curve]))
        ):
            self.settled()
            return False
        cost = self.record.account.counting(curve.using(used))
        if self.room is None:
            self.room = Room.of(self.settled().account, cost, watermark, from_held=from_held)
        else:
            before, self.room = self.room, self.room.after(self.count, cost, watermark)
            if self.shares is not None:
                self.shares = self.shares.charged(self.count, cost, before, self.room)
            if self.at_order is not None and self.cost is not None:
                self.at_order = self.at_order.charged(self.cost, self.count)
            self.charged = self._counts()
        self.event, self.curve, self.cost, self.count = event, curve, cost, 0
        _, self.earlier = self.charged.get(event, (curve, 0))
        return True

    def _spent(self, charged: Mapping[str, tuple[RdpCurve, int]]) -> RdpCurve:
        """Add charges to the account's curve."""
        spent = self.record.account.spent
        for curve, count in charged.values():
            spent = spent + curve.times(count)
        return spent

    def _counts(self) -> Mapping[str, tuple[RdpCurve, int]]:
        """Collect cost and repetitions of all events, by fingerprint."""
        if not self.count:
            return self.charged
        assert self.cost is not None, "something was charged"
        return {**self.charged, self.event: (self.cost, self.earlier + self.count)}


def _used_further(used: Usage, cost: RdpCurve, count: int) -> Usage:
    return {**used, **{owner: repeated(used[owner], each, count) for owner, each in cost.used.items()}}


def admit_by_counting(
    path: Sequence[CountedAccount], priced: PricedStep, left_of_reservation: int | None = None
) -> Admission | None:
    """Admit repetitions of one event that fit, as `admission.admit` would; None if the rule must decide.

    Nothing is charged: `CountedAccount.charge` does that. The admission has no accounts, which are added up only when
    somebody needs them.

    Args:
        path: of a run, root to leaf.
        priced: the event with its cost and number of repetitions.
        left_of_reservation: repetitions that the reservation has left, if they are taken out of it; then the charge is
            the account's of the run alone, and the account above with a limit tells how much is used if it has none.
    """
    key, curve, number = fingerprint(priced.step.event), priced.curve, priced.step.count
    own, reserved = path[-1], left_of_reservation is not None
    used, remaining, binding = None, left_of_reservation, own
    for counted in path[-1:] if reserved else path:
        if not counted.is_current(key, curve, from_held=reserved):
            used = usage_of([each.record.account for each in path], priced.step.event) if used is None else used
            if not counted.make_current(key, curve, used, from_held=reserved):
                return None
        left = counted.fits(number)
        if left < 0:
            return None
        if remaining is None or left < remaining:
            remaining, binding = left, counted
    assert remaining is not None, "a path has accounts"
    if reserved and own.record.account.limit is None:
        governing = governing_of([counted.record.account for counted in path])
        return Admission((), remaining, own.record.account, governing.used())
    return Admission((), remaining, binding.record.account, binding.used(number))
