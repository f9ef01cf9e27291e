"""Reservations: steps whose cost is set aside, or that wait for it."""

import math
from dataclasses import dataclass
from datetime import datetime

from epsilon_ledger._wire.events import Event


@dataclass(frozen=True, slots=True)
class ReservedEvent:
    """An event's reserved count, and the steps authorized or removed by a lowered limit."""

    event: Event
    count: int
    authorized: int
    revoked: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """An account that does not hold a waiting reservation now.

    Args:
        account: its id.
        account_path: its path.
        reason: "closed": it is not open. "limit": its limit leaves too little. "reserved": active reservations have
            reserved it. "locked": it is unlocked later. "promised": it is kept for other budgets.
        requested: share of the account's capacity that the reservation takes.
        available: share of it that can be taken now.
        opens_at: of a closed account; None: unknown.
    """

    account: str
    account_path: str
    reason: str
    requested: float
    available: float
    opens_at: datetime | None = None

    def __str__(self) -> str:
        """Format the account and the reason, with the amounts if they matter."""
        if self.reason == "closed":
            opens = "" if self.opens_at is None else f", opens at {self.opens_at:%Y-%m-%d %H:%M:%S %Z}"
            return f"{self.account_path} (closed{opens})"
        needed = "more than all" if math.isinf(self.requested) else f"{100 * self.requested:.4g} %"
        return f"{self.account_path} ({self.reason}: needs {needed} of the limit, {100 * self.available:.4g} % is left)"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a reservation waits for, and its place; its text is one line.

    Args:
        rule: by which waiting reservations are served.
        position: from 1, among the reservations that want one of its accounts.
        reservations: number of these reservations.
        aged: whether no younger reservation may delay it any more.
        score: by the rule, the least first; None: by arrival.
        lacks: what its accounts lack; empty: it fits, and others are served before it.
        estimated_at: when it is reserved, if nothing changes but what time unlocks and opens; None: unknown.
    """

    rule: str
    position: int
    reservations: int
    aged: bool
    score: float | None
    lacks: tuple[Shortage, ...]
    estimated_at: datetime | None

    def __str__(self) -> str:
        """Format the place, what is lacking, and the estimate."""
        lacks = f"; waits for {', '.join(map(str, self.lacks))}" if self.lacks else "; it fits, others are served first"
        expected = "" if self.estimated_at is None else f"; expected at {self.estimated_at:%Y-%m-%d %H:%M:%S %Z}"
        return f"place {self.position} of {self.reservations} by {self.rule}{lacks}{expected}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved steps, or ones that wait to be reserved.

    `status` is "waiting", "active", "committed", "voided", "forfeited", "expired" or "cancelled". An active one's
    remainder is forfeited at `expires_at`; a waiting one expires then. One that has waited was reserved at
    `granted_at`, and claimed by its trainer at `claimed_at`. If it is not before the lease ends, it is returned.
    """

    id: str
    run: str
    attempt: int
    status: str
    events: tuple[ReservedEvent, ...]
    steps_reserved: int
    steps_authorized: int
    steps_revoked: int
    steps_executed: int | None
    lease_seconds: int
    expires_at: datetime
    created_at: datetime | None = None
    wait_until: datetime | None = None
    granted_at: datetime | None = None
    claimed_at: datetime | None = None
    priority: int | None = None
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class CreatedReservation:
    """Response to a new reservation.

    `epsilon` is the run's so far, `used` the share of the capacity of `binding_account`, each also with the reserved
    steps; `steps_remaining` fit in addition.
    """

    id: str
    events: tuple[ReservedEvent, ...]
    steps_reserved: int
    lease_seconds: int
    expires_at: datetime
    next_step: int
    epsilon: float
    epsilon_including_reserved: float
    delta: float
    used: float
    used_including_reserved: float
    steps_remaining: int
    binding_account: str
    binding_account_path: str
