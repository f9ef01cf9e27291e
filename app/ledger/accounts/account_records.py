"""Accounts as stored: their populations, times, charges since the last curves, partitions and alert thresholds.

Epsilon grows with the spent curve, which never decreases, but computing it would cost more than the charge. One order
is enough to prove that a threshold was not reached: epsilon is a minimum over orders and the plan, so it stays below
as long as that order does. A watermark is the order, or the plan, and its maximum; once it is exceeded, epsilon and the
next watermark are computed (ADR 0018).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import floor
from operator import ge
from typing import Final

import numpy as np

from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve, pure_nats
from app.accounting.events import NeighboringRelation, fingerprint
from app.ledger.accounts.account import Account
from app.ledger.accounts.alerts import DEFAULT_ALERT_SETTINGS, AlertSettings
from app.ledger.plan.plan_filter import Coordinates
from app.ledger.repeated_events import repeated
from app.ledger.step_events import PricedStep


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

UncompactedCharges = Mapping[str, tuple[int, int]]
"""Charges since the curves were written, by fingerprint: the count, and the count from holds."""


_ROUNDING: Final = 2.0**-48
"""Relative error allowed for each term of an epsilon; the watermark is a little early, and epsilon decides."""


@dataclass(frozen=True, slots=True)
class ThresholdWatermark:
    """Proof that no further threshold was reached.

    Args:
        passed: number of thresholds reached.
        place: grid index of an order.
        bound: maximum spent there, units of 2^-44 nats; -1 proves nothing.
        delta: maximum sum of mechanisms' own deltas, units of 2^-62.
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
        uncompacted: charges since its curves were written; None: the curves must be written.
        watermark: its threshold watermark, if computed.
    """

    account: Account
    population: Population
    created_at: datetime
    updated_at: datetime
    quarantine: str | None = None
    uncompacted: UncompactedCharges | None = field(default_factory=dict)
    alert_settings: AlertSettings = DEFAULT_ALERT_SETTINGS
    watermark: ThresholdWatermark | None = None

    def charged_to(
        self, account: Account, steps: Sequence[PricedStep], now: datetime, *, from_held: bool = False
    ) -> "AccountRecord":
        """Copy the record after steps, or their move from held, were charged to the account."""
        if account.exposure is not None:  # a maximum over partitions is no sum of events
            same = (account.spent, account.held) == (self.account.spent, self.account.held)
            return self.changed_to(account, now, self.uncompacted if same else None)
        if self.uncompacted is None:
            return self.changed_to(account, now)
        counted = dict(self.uncompacted)
        for priced, repetitions in repeated(steps):
            key, count = fingerprint(priced.step.event), priced.step.count * repetitions
            times, taken = counted.get(key, (0, 0))
            counted[key] = (times + count, taken + count if from_held else taken)
        return self.changed_to(account, now, counted if len(counted) <= MOST_EVENTS else None)

    def changed_to(
        self, account: Account, now: datetime, uncompacted: UncompactedCharges | None = None
    ) -> "AccountRecord":
        """Copy the record after a change of the account, keeping the thresholds reached before."""
        if account.exposure is not None:  # valid for one run only
            account = replace(account, exposure=None)
        watermark = self.watermark or watermark_of(self.account, self.alert_settings.thresholds)
        # Hot path, once per account and step: dataclasses.replace takes three times as long.
        same = (self.population, self.created_at)
        return AccountRecord(account, *same, now, self.quarantine, uncompacted, self.alert_settings, watermark)

    def after(self, earlier: "AccountRecord") -> "AccountRecord":
        """Copy the record with an earlier watermark that still holds despite other charges."""
        if earlier.alert_settings.thresholds != self.alert_settings.thresholds:
            return self
        if earlier.watermark is None or not holds_on(earlier.watermark, earlier.account, self.account):
            return self
        return replace(self, watermark=earlier.watermark)


def holds_on(watch: ThresholdWatermark, before: Account, now: Account) -> bool:
    """Check whether a watermark still proves the same for a later account state.

    If not, epsilon must be computed. `now` may be older than `before` after a restore; then the thresholds that were
    reached may not be.
    """
    return (
        watch.holds(now.spent)
        and before.limit == now.limit
        and before.weights == now.weights
        and (not watch.passed or now.spent.covers(before.spent))
    )


def reached(account: Account, thresholds: Sequence[float]) -> int:
    """Count the thresholds that an account's epsilon has reached; 0 without a limit."""
    if account.limit is None:
        return 0
    epsilon, limit = account.epsilon(), account.limit.epsilon
    return sum(epsilon >= threshold * limit for threshold in thresholds)


def watermark_of(account: Account, thresholds: Sequence[float]) -> ThresholdWatermark:
    """Find what proves longest that the next threshold is not reached: the plan, or an order.

    The watermark holds for the account itself, unless it is at or next to the threshold.
    """
    passed = reached(account, thresholds)
    if account.limit is None or passed == len(thresholds):
        return ThresholdWatermark(passed, 0, EXHAUSTED, EXHAUSTED)
    if account.spent.is_zero:  # its filter may not be fixed yet
        return ThresholdWatermark(passed, 0, -1, 0)
    gate, target = account.bounds(), thresholds[passed] * account.limit.epsilon
    most = None if account.plan is None else account.plan.usage_below(target)
    if most is not None and account.spent.delta <= gate.room:
        by_plan = ThresholdWatermark(passed, 0, EXHAUSTED, gate.room, (account.id, most))
        if by_plan.holds(account.spent):
            return by_plan
    epsilons = account.spent.at(gate.places).nats() + gate.prices
    best = int(np.argmin(epsilons))
    place, price = int(gate.places[best]), float(gate.prices[best])
    if pure_nats(account.spent.pure) < epsilons[best]:  # which the order that represents infinity bounds, at no price
        place, price = account.spent.values.size - 1, 0.0
    bound = floor((target - price - _ROUNDING * (target + abs(price))) / UNIT) - 1
    return ThresholdWatermark(passed, place, max(-1, min(bound, EXHAUSTED - 1)), gate.room)
