"""Accounts as stored: their populations, times, charges since the last curves, partitions and alert thresholds.

The used share grows with the spent curve, which never decreases, but computing it would cost more than the charge. One
order is enough to prove that a threshold was not reached: the share is a minimum over orders and the plan, so it stays
below as long as that order does. A watermark is the order, or the plan, and its maximum; once it is exceeded, the share
and the next watermark are computed (ADR 0018).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from math import ceil, inf
from operator import ge
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED, UNIT, Floats, RdpCurve, orders
from app.accounting.events import NeighboringRelation, fingerprint
from app.accounting.exact_losses import PER_NAT, Coordinate
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.accounts.alerts import DEFAULT_ALERT_SETTINGS, AlertSettings
from app.ledger.filter.filters import FilterBounds
from app.ledger.plan.plan_filter import Coordinates
from app.ledger.repeated_events import repeated
from app.ledger.step_events import PricedStep, StepEvent


@dataclass(frozen=True, slots=True)
class Population:
    """The fields of a population besides its account."""

    privacy_unit: str
    relation: NeighboringRelation
    size: int | None


@dataclass(frozen=True, slots=True)
class Attestation:
    """A statement that an account's children are disjoint, and chosen independently of the data.

    `replacement_assumption` is the assumption on replaced units under replace_one.
    """

    text: str
    replacement_assumption: str | None
    attested_by: str
    attested_at: datetime


@dataclass(frozen=True, slots=True)
class Block:
    """The data of a half-open period, a partition of its population."""

    data_from: datetime
    data_to: datetime
    label: str | None


MOST_EVENTS: Final = 16
"""Maximum different events before the curves are written."""

MOST_KINDS: Final = 1000
"""Maximum different events of which an account keeps the counts."""

UncompactedCharges = Mapping[str, tuple[int, int]]
"""Charges since the curves were written, by fingerprint: the count, and the count from holds."""

Counts = Mapping[str, int]
"""Charges by the fingerprint of their event."""


@dataclass(frozen=True, slots=True)
class ThresholdWatermark:
    """Proof that no further threshold was reached.

    Args:
        passed: number of thresholds reached.
        place: grid index of an order.
        bound: maximum spent there, units of 2^-44 nats; -1 proves nothing.
        delta: maximum sum of mechanisms' own deltas, units of 1e-18.
        planned: the account and the maximum usage of its plan, if that is the proof; then the order proves nothing.
    """

    passed: int
    place: int
    bound: int
    delta: int
    planned: tuple[str, Coordinates] | None = None

    def holds(self, spent: RdpCurve) -> bool:
        """Check whether a spent curve has provably reached no further threshold."""
        # Hot path, once per account and step: comparing Python ints takes a tenth of a microsecond.
        if self.planned is not None:
            owner, most = self.planned
            return spent.delta <= self.delta and owner in spent.used and all(map(ge, most, spent.used[owner]))
        return spent.values.item(self.place) <= self.bound and spent.delta <= self.delta


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account with its population's fields and its times.

    Args:
        quarantine: the reason that writes are stopped, if they are.
        uncompacted: charges since its curves were written.
        compacted: the charges before, which the written curves have; None: they are not counted, since there are more
            than MOST_KINDS, or because disjoint parts are composed in it.
        must_compact: whether the curves must be written.
        watermark: its threshold watermark, if computed.
    """

    account: Account
    population: Population
    created_at: datetime
    updated_at: datetime
    quarantine: str | None = None
    uncompacted: UncompactedCharges = field(default_factory=dict)
    compacted: Counts | None = field(default_factory=dict)
    must_compact: bool = False
    alert_settings: AlertSettings = DEFAULT_ALERT_SETTINGS
    watermark: ThresholdWatermark | None = None

    @property
    def counts(self) -> Counts | None:
        """All charges by event; None if they are not counted."""
        return counts_with(self.compacted, self.uncompacted)

    def charged_to(
        self,
        account: Account,
        steps: Sequence[PricedStep],
        now: datetime,
        *,
        from_held: bool = False,
        compact: bool = False,
    ) -> "AccountRecord":
        """Copy the record after steps, or their move from held, were charged to the account.

        `compact`: its curves must be written, since what it holds is not the difference.
        """
        if account.exposure is not None:  # a maximum over partitions is no sum of events
            same = (account.spent, account.held) == (self.account.spent, self.account.held)
            return self._after(account, now, self.uncompacted, self.compacted if same else None, compact=not same)
        counted = dict(self.uncompacted)
        for priced, repetitions in repeated(steps):
            key, count = fingerprint(priced.step.event), priced.step.count * repetitions
            times, taken = counted.get(key, (0, 0))
            counted[key] = (times + count, taken + count if from_held else taken)
        return self._after(account, now, counted, self.compacted, compact=compact or len(counted) > MOST_EVENTS)

    def changed_to(self, account: Account, now: datetime, *, compact: bool = True) -> "AccountRecord":
        """Copy the record after a change of the account that charges nothing; `compact`: its curves have changed."""
        return self._after(account, now, self.uncompacted, self.compacted, compact=compact)

    def _after(
        self,
        account: Account,
        now: datetime,
        uncompacted: UncompactedCharges,
        compacted: Counts | None,
        *,
        compact: bool,
    ) -> "AccountRecord":
        """Copy the record after a change, keeping the thresholds reached before."""
        if account.exposure is not None:  # valid for one run only
            account = replace(account, exposure=None)
        watermark = self.watermark or watermark_of(self.account, self.alert_settings.thresholds)
        # Hot path, once per account and step: dataclasses.replace takes three times as long.
        return AccountRecord(
            account,
            self.population,
            self.created_at,
            now,
            self.quarantine,
            uncompacted,
            compacted,
            compact or self.must_compact,
            self.alert_settings,
            watermark,
        )

    def with_executed(self, reserved: Iterable[StepEvent]) -> "AccountRecord":
        """Copy the record of a run as if all that it holds, which are these steps, were charged."""
        account = self.account
        return self._as_if(account.spent + account.held, zero_curve(account.grid_version), reserved)

    def with_charged(self, step: StepEvent, curve: RdpCurve) -> "AccountRecord":
        """Copy the record as if steps with the curve of each were charged, whether they fit or not."""
        return self._as_if(self.account.spent + curve.times(step.count), self.account.held, [step])

    def _as_if(self, spent: RdpCurve, held: RdpCurve, charged: Iterable[StepEvent]) -> "AccountRecord":
        further = dict(self.uncompacted)
        for step in charged:
            key = fingerprint(step.event)
            times, taken = further.get(key, (0, 0))
            further[key] = (times + step.count, taken)
        return replace(self, account=replace(self.account, spent=spent, held=held), uncompacted=further)

    def with_written_curves(self) -> "AccountRecord":
        """Copy the record after its curves were written with all charges."""
        return replace(self, uncompacted={}, compacted=self.counts, must_compact=False)

    def after(self, earlier: "AccountRecord") -> "AccountRecord":
        """Copy the record with an earlier watermark that still holds despite other charges."""
        if earlier.alert_settings.thresholds != self.alert_settings.thresholds:
            return self
        if earlier.watermark is None or not holds_on(earlier.watermark, earlier.account, self.account):
            return self
        return replace(self, watermark=earlier.watermark)


def counts_with(compacted: Counts | None, uncompacted: UncompactedCharges) -> Counts | None:
    """Count all charges by event; None if they are not counted, or are of more than MOST_KINDS events."""
    return added_counts(compacted, {event: times for event, (times, _) in uncompacted.items()})


def added_counts(counts: Counts | None, further: Counts) -> Counts | None:
    """Add further charges to counts; None if they are not counted, or are of more than MOST_KINDS events."""
    if counts is None:
        return None
    total = dict(counts)
    for event, count in further.items():
        total[event] = total.get(event, 0) + count
    return total if len(total) <= MOST_KINDS else None


def holds_on(watch: ThresholdWatermark, before: Account, now: Account) -> bool:
    """Check whether a watermark still proves the same for a later account state.

    If not, the share must be computed. `now` may be older than `before` after a restore; then the thresholds that were
    reached may not be.
    """
    return (
        watch.holds(now.spent)
        and before.limit == now.limit
        and before.weights == now.weights
        and (not watch.passed or now.spent.covers(before.spent))
    )


def reached(account: Account, thresholds: Sequence[float]) -> int:
    """Count the thresholds that the used share of an account's capacity has reached; 0 without a limit."""
    used = account.used()
    return sum(used >= threshold for threshold in thresholds)


def _bound_of_exact_loss(gate: FilterBounds, grid: Floats) -> tuple[int, Fraction]:
    """Find an order that bounds the exact loss of a filter, and the most that is spent there if that is within it.

    The order that represents infinity bounds the pure loss, and any order a bounds rho = mu^2 / 2 by its divergence
    over a: no curve has less there (ADR 0004).
    """
    most = Fraction(gate.most, PER_NAT) / Fraction(UNIT)
    if gate.coordinate is Coordinate.PURE:
        return grid.size - 1, most
    place = int(np.searchsorted(grid, 2.0))
    return place, most * Fraction(float(grid[place])) / (2 if gate.coordinate is Coordinate.MU_SQUARED else 1)


def watermark_of(account: Account, thresholds: Sequence[float]) -> ThresholdWatermark:
    """Find what proves longest that the next threshold is not reached: the plan, or an order.

    The watermark holds for the account itself, unless it is at or next to the threshold.
    """
    passed = reached(account, thresholds)
    if account.limit is None or passed == len(thresholds):
        return ThresholdWatermark(passed, 0, EXHAUSTED, EXHAUSTED)
    if account.spent.is_zero:  # its filter may not be fixed yet
        return ThresholdWatermark(passed, 0, -1, 0)
    gate, target = account.bounds(), Fraction(thresholds[passed])
    delta = gate.room if account.planned else min(gate.room, max(ceil(target * gate.room) - 1, 0))
    if account.plan is not None:
        by_plan = ThresholdWatermark(passed, 0, EXHAUSTED, delta, (account.id, account.plan.usage_below(target)))
        if by_plan.holds(account.spent):
            return by_plan
    spent = account.spent.values[gate.places]
    shares = np.where(gate.bounds > 0, spent / np.maximum(gate.bounds, 1), inf)
    best = int(np.argmin(shares))
    place, most = int(gate.places[best]), Fraction(int(gate.bounds[best]))
    if gate.exact_share(gate.exact_loss(account.spent)) < shares[best]:
        place, most = _bound_of_exact_loss(gate, orders(account.grid_version))
    return ThresholdWatermark(passed, place, min(ceil(target * most) - 1, EXHAUSTED - 1), delta)
