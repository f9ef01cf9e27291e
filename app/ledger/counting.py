"""Repeated charges of one event, decided by counting (ADR 0033).

Adding a curve to an account and comparing it with the filter's bounds takes many times as long as adding 1 to a count.
For an account and an event without a delta of its own, let room_j be what order j has left and c_j the cost. After k
repetitions a further n of them fit iff at some order n c_j <= room_j - k c_j, that is iff

    n <= max(most - k, endless)

where most is the largest floor(room_j / c_j) with c_j > 0, and endless the largest room_j with c_j = 0.

All numbers are integers, so this is the admission rule and not an approximation of it. A count can only admit, with
the same result as the rule in `app.ledger.admission`. The rule decides every other charge, and it alone refuses.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import fingerprint
from app.ledger.account_records import (
    MOST_EVENTS,
    AccountRecord,
    AccountVersion,
    ThresholdWatermark,
    UncompactedCharges,
)
from app.ledger.accounts import Account, PricedStep
from app.ledger.admission import UNLIMITED, Admission, Reading, governing_of
from app.ledger.epsilons import EPSILONS_AHEAD, EpsilonsAhead
from app.ledger.filters import FilterBounds


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How often an account admits an event, from one state of its balance on.

    Args:
        most: repetitions that fit at the orders where the event has a cost; negative if none does.
        endless: the same at those where it has none, which does not fall.
        unannounced: repetitions before an alert threshold may be reached.
    """

    most: int
    endless: int
    unannounced: int


@dataclass(frozen=True, slots=True)
class Room:
    """The unspent part of an account's bounds, and its loss at the order of the next threshold.

    Args:
        gate: the filter's bounds; None without a limit.
        left: (n_places,) units that its orders have left; negative where one is exceeded.
        watched: units spent at the order of the threshold watermark; may be more than EXHAUSTED.
    """

    gate: FilterBounds | None
    left: NDArray[np.int64]
    watched: int

    @classmethod
    def of(cls, account: Account, watermark: ThresholdWatermark) -> "Room | None":
        """Compute the room of an account; None if its filter is not fixed, or has no delta left."""
        watched = account.spent.values.item(watermark.place)
        if account.limit is None:
            return cls(None, account.spent.values[:0], watched)
        own_delta = account.own_delta()
        gate = account.bounds(own_delta)
        if not account.weights_frozen or own_delta > gate.room:
            return None
        return cls(gate, account.headroom(gate), watched)

    def after(self, curve: RdpCurve, count: int, watermark: ThresholdWatermark) -> "Room":
        """Take repetitions of an event."""
        watched = self.watched + curve.values.item(watermark.place) * count
        if self.gate is None:
            return Room(None, self.left, watched)
        taken = curve.at(self.gate.places).times(count).values
        return Room(self.gate, self.gate.less(self.left, taken), watched)

    def repetitions(self, curve: RdpCurve, watermark: ThresholdWatermark) -> Repetitions:
        """Count the repetitions of an event that fit."""
        unannounced = self._unannounced(curve.values.item(watermark.place), watermark.bound)
        if self.gate is None:
            return Repetitions(UNLIMITED, -1, unannounced)
        cost = curve.values[self.gate.places]
        moving = cost > 0
        if moving.all():
            return Repetitions(int((self.left // cost).max()), -1, unannounced)
        most = int((self.left[moving] // cost[moving]).max()) if moving.any() else -1
        return Repetitions(most, int(self.left[~moving].max()), unannounced)

    def _unannounced(self, cost: int, bound: int) -> int:
        """Count the repetitions after which the watermark still holds; -1 if it does not hold now."""
        if min(self.watched, EXHAUSTED) > bound:
            return -1
        return UNLIMITED if not cost or bound >= EXHAUSTED else (bound - self.watched) // cost


@dataclass(slots=True)
class CountedAccount:
    """An account and the repetitions of events that were charged to it since its curves were added up.

    It is changed by the transaction that charges; others get a copy.

    Args:
        record: the account before these charges.
        charged: cost and repetitions by event, without those that `count` has; never changed in place.
        event: fingerprint of the current event, the only one that is counted now.
        curve: its cost.
        count: its repetitions since it is the current one.
        charges: number of all charges, each of which made a new version.
        charged_at: time of the last one.
        room: before the repetitions of the current event; None if it was not computed.
        repetitions: of the current event that fit into that room; None if the rule must decide.
        governing: of a run, the place in its path of the account whose filter gives its epsilon, once it was looked up.
    """

    record: AccountRecord
    charged: Mapping[str, tuple[RdpCurve, int]] = field(default_factory=dict)
    event: str = ""
    curve: RdpCurve | None = None
    count: int = 0
    charges: int = 0
    charged_at: datetime | None = None
    room: Room | None = field(default=None, repr=False)
    repetitions: Repetitions | None = None
    epsilons: EpsilonsAhead | None = field(default=None, repr=False)
    governing: int | None = None

    @property
    def version(self) -> int:
        """The account's version after the charges."""
        return self.record.account.version + self.charges

    @property
    def updated_at(self) -> datetime:
        """The time of the account's last change."""
        return self.charged_at or self.record.updated_at

    @property
    def uncompacted(self) -> UncompactedCharges:
        """The charges since the stored curves, with these."""
        found = dict(self.record.uncompacted or {})
        for event, count in [(self.event, self.count), *((each, count) for each, (_, count) in self.charged.items())]:
            if count:
                times, taken = found.get(event, (0, 0))
                found[event] = (times + count, taken)
        return found

    def copy(self) -> "CountedAccount":
        """Copy the counts, for a transaction of its own."""
        current = (self.event, self.curve, self.count, self.charges, self.charged_at, self.room, self.repetitions)
        return CountedAccount(self.record, self.charged, *current, self.epsilons, self.governing)

    def matches(self, read: AccountVersion) -> bool:
        """Check whether the database has the same version; after a restore a version alone may repeat."""
        here = (self.version, self.updated_at, self.record.quarantine)
        return here == (read.version, read.updated_at, read.quarantine)

    def settled(self) -> AccountRecord:
        """Add the counted charges to the account's curves, and begin to count anew."""
        if self.charges:
            account = self.record.account
            spent = account.spent
            for curve, count in self._counts().values():
                spent = spent + curve.times(count)
            self.record = replace(
                self.record,
                account=replace(account, spent=spent, version=self.version),
                updated_at=self.updated_at,
                uncompacted=self.uncompacted,
            )
            self.charged, self.event, self.curve, self.count, self.charges, self.charged_at = {}, "", None, 0, 0, None
            self.room = self.repetitions = self.epsilons = None
        return self.record

    def counts(self, event: str, curve: RdpCurve) -> bool:
        """Make an event the current one; false if the rule must decide on it."""
        if self.curve is not curve:
            watermark = self.record.watermark
            if watermark is None or not _is_plain(self.record, {*self.charged, self.event, event}) or curve.delta:
                self.settled()
                return False
            self._make_current(event, curve, watermark)
        return self.repetitions is not None

    def fits(self, number: int) -> int:
        """Count the repetitions that would still fit after a further `number`; negative to ask the rule."""
        known, after = self.repetitions, self.count + number
        assert known is not None, "its event is counted"
        return -1 if after > known.unannounced else max(known.most - after, known.endless)

    def charge(self, number: int, now: datetime) -> None:
        """Charge repetitions that fit."""
        self.count += number
        self.charges += 1
        self.charged_at = now

    def epsilon(self, governing: Account, number: int) -> float | None:
        """Get the epsilon by the governing filter after a further `number` of repetitions; None to ask the rule."""
        assert self.curve is not None, "its event is counted"
        known, after = self.epsilons, self.count + number
        if known is None or known.governing is not governing:
            known = self.epsilons = EpsilonsAhead.of(governing, self.record.account.spent, self.charged.values())
        if known.curve is not self.curve or not 0 <= after - known.first < len(known.values):
            ahead = EPSILONS_AHEAD if self.count else 1  # the first may be the only one
            known = self.epsilons = known.computed(self.curve, range(after, after + ahead))
        return known.values[after - known.first] if known.values else None

    def _make_current(self, event: str, curve: RdpCurve, watermark: ThresholdWatermark) -> None:
        if self.room is None:
            self.room = Room.of(self.settled().account, watermark)
        elif self.curve is not None and self.count:
            self.room = self.room.after(self.curve, self.count, watermark)
            if self.epsilons is not None:
                self.epsilons = self.epsilons.charged(self.curve, self.count)
            self.charged = self._counts()
        self.event, self.curve, self.count = event, curve, 0
        holds = self.record.account.spent.delta <= watermark.delta
        self.repetitions = self.room.repetitions(curve, watermark) if self.room is not None and holds else None

    def _counts(self) -> Mapping[str, tuple[RdpCurve, int]]:
        """Collect cost and repetitions of all events, by fingerprint."""
        if not self.count:
            return self.charged
        assert self.curve is not None, "something was charged"
        _, earlier = self.charged.get(self.event, (None, 0))
        return {**self.charged, self.event: (self.curve, earlier + self.count)}


def admit_by_counting(path: Sequence[CountedAccount], priced: PricedStep) -> Admission | None:
    """Admit repetitions of one event that fit, as `admission.admit` would; None if the rule must decide.

    Nothing is charged: `CountedAccount.charge` does that. The admission has no accounts, which are added up only when
    somebody needs them.
    """
    key, curve, number = fingerprint(priced.step.event), priced.curve, priced.step.count
    for counted in path:
        if not counted.counts(key, curve):
            return None
    left = [counted.fits(number) for counted in path]
    remaining = min(left)
    own = path[-1]
    if own.governing is None:  # a run never moves
        accounts = [counted.record.account for counted in path]
        own.governing = [account.id for account in accounts].index(governing_of(accounts).id)
    governing = path[own.governing].record.account
    epsilon = own.epsilon(governing, number)
    if remaining < 0 or epsilon is None:
        return None
    assert governing.limit is not None, "it governs"
    reading = Reading(epsilon, governing.limit.delta, governing.limit.epsilon)
    return Admission((), reading, remaining, path[left.index(remaining)].record.account)


def _is_plain(record: AccountRecord, events: Collection[str]) -> bool:
    """Check that only its limit and window decide on an account, and that its curves need not be written."""
    account, known = record.account, record.uncompacted
    if known is None or len({*known, *events} - {""}) > MOST_EVENTS:
        return False
    unrestricted = record.quarantine is None and account.policy is None and account.organisation_policy is None
    return unrestricted and account.partitions_per_unit is None
