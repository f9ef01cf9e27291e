"""Audit events, decisions and verifications."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._wire.models import EndedPlan

DecisionOutcome: TypeAlias = Literal["admitted", "refused", "reported", "forfeited"]


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An entry of the audit log: what `actor` did to `subject`, before and after; `hash` chains it to those before."""

    position: int
    actor: str
    action: str
    subject: str
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    reason: str | None
    request_id: str | None
    created_at: datetime
    hash: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision on steps of a run; `refusal` has the numbers of a refusal.

    `epsilon` is the run's afterwards, `used` the share of the capacity of `binding_account`.
    """

    run: str
    run_path: str
    run_number: int
    position: int
    decision: str
    attempt: int
    first_step: int
    count: int
    requested_count: int
    epsilon: float
    delta: float
    used: float
    binding_account: str
    binding_account_path: str
    refusal: Mapping[str, object] | None
    reservation: str | None
    ended_plans: tuple[EndedPlan, ...]
    warnings: tuple[str, ...]
    actor: str
    request_id: str | None
    hash: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A balance that its charges do not prove; `account` None: the cost of an event."""

    account: str | None
    position: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An account that cannot be charged; `liftable`: no discrepancy remains, so that two persons may lift it."""

    account: str
    detail: str
    liftable: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification recomputed, and what it found; the lists have the first 100 of their counts."""

    id: str
    actor: str
    created_at: datetime
    sound: bool
    accounts: int
    runs: int
    decisions: int
    reservations: int
    charges: int
    steps: int
    audit_events: int
    discrepancy_count: int
    discrepancies: tuple[Discrepancy, ...]
    quarantined_count: int
    quarantined: tuple[Quarantine, ...]
