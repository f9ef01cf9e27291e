"""Accounts as stored: their populations, times, charges since the last curves, and partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from app.accounting.events import NeighboringRelation, fingerprint
from app.ledger.accounts import Account, AccountKind, PricedStep
from app.ledger.alert_thresholds import ThresholdWatermark, holds_on, watermark_of
from app.ledger.alerts import DEFAULT_ALERT_SETTINGS, AlertSettings


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


@dataclass(frozen=True, slots=True)
class AccountVersion:
    """The columns of an account that show whether a cached copy is current."""

    id: str
    version: int
    updated_at: datetime
    quarantine: str | None


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
        for priced in steps:
            key, count = fingerprint(priced.step.event), priced.step.count
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

    def after(self, earlier: "AccountRecord | None") -> "AccountRecord":
        """Copy the record with an earlier watermark that still holds despite other charges."""
        if earlier is None or earlier.alert_settings.thresholds != self.alert_settings.thresholds:
            return self
        if earlier.watermark is None or not holds_on(earlier.watermark, earlier.account, self.account):
            return self
        return replace(self, watermark=earlier.watermark)

    def matches(self, read: AccountVersion) -> bool:
        """Check whether the record is current; after a restore a version alone may repeat."""
        here = (self.account.version, self.updated_at, self.quarantine)
        return here == (read.version, read.updated_at, read.quarantine)


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """A filter of accounts; None: any."""

    kind: AccountKind
    within: str | None = None
    parent_id: str | None = None
    path: str | None = None
