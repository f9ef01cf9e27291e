"""Repeated charges of one event, decided by counting (ADR 0033).

Adding a curve to an account and comparing it with the filter's bounds takes many times as long as adding 1 to a count.
For an account and an event without a delta of its own, let room_j be what order j has left and c_j the cost. After k
repetitions a further n of them fit iff at some order n c_j <= room_j - k c_j, that is iff

    n <= max(most - k, endless)

where most is the largest floor(room_j / c_j) with c_j > 0, and endless the largest room_j with c_j = 0.

All numbers are integers, so this is the admission rule and not an approximation of it. A count can only say that
charges fit, and what the rule would have answered; whatever it cannot prove is left to the rule in
`app.ledger.admission`, which alone refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.accounting.events import fingerprint
from app.ledger.account_records import MOST_EVENTS, AccountRecord, AccountVersion, UncompactedCharges
from app.ledger.accounts import Account, PricedStep
from app.ledger.admission import UNLIMITED, Admission, Reading, governing_of

EPSILONS_AHEAD: Final = 64
"""Epsilons computed at once."""

_EXACT: Final = 2**53
"""Units below which every integer is a float."""


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


@dataclass(slots=True)
class CountedAccount:
    """An account and the repetitions of one event that were charged to it since its curves were added up.

    It is changed by the transaction that charges; others get a copy.

    Args:
        record: the account before these charges.
        curve: the cost of the event whose fingerprint is `event`.
        count: number of repetitions.
        charges: number of charges, each of which made a new version.
        charged_at: time of the last one.
        repetitions: what fits of the event from the record's state on; None if the rule must decide.
        governing: of a run, the place in its path of the account whose filter gives its epsilon, once it was looked up.
    """

    record: AccountRecord
    curve: RdpCurve | None = None
    event: str = ""
    count: int = 0
    charges: int = 0
    charged_at: datetime | None = None
    repetitions: Repetitions | None = None
    epsilons: "EpsilonsAhead | None" = field(default=None, repr=False)
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
        before = self.record.uncompacted or {}
        if not self.count:
            return before
        times, taken = before.get(self.event, (0, 0))
        return {**before, self.event: (times + self.count, taken)}

    def copy(self) -> "CountedAccount":
        """Copy the counts, for a transaction of its own."""
        counts = (self.curve, self.event, self.count, self.charges, self.charged_at)
        return CountedAccount(self.record, *counts, self.repetitions, self.epsilons, self.governing)

    def matches(self, read: AccountVersion) -> bool:
        """Check whether the database has the same version; after a restore a version alone may repeat."""
        here = (self.version, self.updated_at, self.record.quarantine)
        return here == (read.version, read.updated_at, read.quarantine)

    def settled(self) -> AccountRecord:
        """Add the counted charges to the account's curves, and begin to count anew."""
        if self.charges:
            assert self.curve is not None, "something was charged"
            account = self.record.account
            spent = account.spent + self.curve.times(self.count)
            self.record = replace(
                self.record,
                account=replace(account, spent=spent, version=self.version),
                updated_at=self.updated_at,
                uncompacted=self.uncompacted,
            )
            self.curve, self.event, self.count, self.charges, self.charged_at = None, "", 0, 0, None
            self.repetitions = self.epsilons = None
        return self.record

    def counts(self, event: str, curve: RdpCurve) -> bool:
        """Prepare to count an event; false if the rule must decide on it."""
        if self.curve is curve:
            return self.repetitions is not None
        self.repetitions = _repetitions(self.settled(), event, curve)
        self.curve, self.event, self.epsilons = curve, event, None
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
        if known is None or known.governing is not governing or not 0 <= after - known.first < EPSILONS_AHEAD:
            known = self.epsilons = EpsilonsAhead.of(governing, self.record.account.spent, self.curve, after)
        return known.values[after - known.first] if known.values else None


@dataclass(frozen=True, slots=True)
class EpsilonsAhead:
    """The epsilons after `first` repetitions, one more, and so on; none if they are not exact."""

    governing: Account
    first: int
    values: Sequence[float]

    @classmethod
    def of(cls, governing: Account, spent: RdpCurve, curve: RdpCurve, first: int) -> "EpsilonsAhead":
        """Compute epsilons as `Account.epsilon` does, with the same operations on floats."""
        gate = governing.bounds(spent.delta)
        before, cost = spent.values[gate.places], curve.values[gate.places]
        used = (before < EXHAUSTED) & (cost < EXHAUSTED)  # elsewhere a divergence is infinite, and never the least
        before, cost, prices = before[used], cost[used], gate.prices[used]
        last = first + EPSILONS_AHEAD
        exact = before.size and spent.delta <= gate.room and int(cost.max()) * last + int(before.max()) < _EXACT
        if not exact:
            return cls(governing, first, ())
        here = before[:, None] + cost[:, None] * np.arange(first, last)
        epsilons = np.maximum(0.0, (here * np.float64(UNIT) + prices[:, None]).min(axis=0))
        epsilons[(here <= gate.covered).any(axis=0)] = 0.0  # never, where delta covers nothing
        return cls(governing, first, epsilons.tolist())


def admit_by_counting(path: Sequence[CountedAccount], priced: PricedStep) -> Admission | None:
    """Admit repetitions of one event that fit, as `admission.admit` would; None if the rule must decide.

    Nothing is charged: `CountedAccount.charge` does that. The admission has no accounts, which are added up only when
    somebody needs them.
    """
    key, number = fingerprint(priced.step.event), priced.step.count
    if not all(counted.counts(key, priced.curve) for counted in path):
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


def _repetitions(record: AccountRecord, event: str, curve: RdpCurve) -> Repetitions | None:
    """Count what fits from a record's state on; None if the rule must decide."""
    account = record.account
    if not (_is_plain(record, event) and not curve.delta and not curve.is_zero):
        return None
    if account.limit is None:
        return Repetitions(UNLIMITED, -1, UNLIMITED)
    own_delta = account.own_delta()
    gate = account.bounds(own_delta)
    if not account.weights_frozen or own_delta > gate.room:
        return None
    room, cost = account.headroom(gate), curve.values[gate.places]
    moving = cost > 0
    most = int((room[moving] // cost[moving]).max()) if moving.any() else -1
    endless = int(room[~moving].max()) if not moving.all() else -1
    return Repetitions(most, endless, _unannounced(record, curve))


def _is_plain(record: AccountRecord, event: str) -> bool:
    """Check that only its limit and window decide on an account, and that its curves need not be written."""
    account, known = record.account, record.uncompacted
    if known is None or (event not in known and len(known) >= MOST_EVENTS):
        return False
    unrestricted = record.quarantine is None and account.policy is None and account.organisation_policy is None
    return unrestricted and account.partitions_per_unit is None and record.watermark is not None


def _unannounced(record: AccountRecord, curve: RdpCurve) -> int:
    """Count the repetitions after which the threshold watermark still holds; -1 if it does not hold now."""
    watermark, spent = record.watermark, record.account.spent
    assert watermark is not None, "thresholds are read before an account is charged"
    if not watermark.holds(spent):
        return -1
    cost = curve.values.item(watermark.place)
    if not cost or watermark.bound >= EXHAUSTED:
        return UNLIMITED
    return int((watermark.bound - spent.values.item(watermark.place)) // cost)
