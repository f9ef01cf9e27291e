"""Schemas of allocations."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from app.api.schemas.common import (
    Body,
    Input,
    Limit,
    Output,
    Reason,
    Reference,
    Timestamp,
)
from app.ledger.errors import InvalidInputError
from app.ledger.settings.allocation import (
    DEFAULT_AGING_SECONDS,
    MAX_PARTS,
    MAX_SECONDS,
    SchedulingRule,
    Unlock,
    UnlockByReservations,
    UnlockOverTime,
)
from app.ledger.settings.allocation import Share as DomainShare
from app.service.governance.allocations import AllocationRecord, AllocationTerms

DAY_SECONDS = 86_400


Rule = Annotated[SchedulingRule, Field(strict=False)]


class UnlockInput(Input):
    """A limit of which equal parts become usable at regular times, or by each run that asks for a reservation."""

    type: Literal["over_time", "by_reservations"]
    over_seconds: int | None = Field(
        default=None, ge=1, le=MAX_SECONDS, description="Of `over_time`: length of all parts together."
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARTS,
        description="Of `over_time`; by default one for each day.",
    )
    reservations: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Of `by_reservations`: number of runs that unlock all of it."
    )
    since: Timestamp | None = Field(default=None, description="When it begins; by default now, or as before.")

    @model_validator(mode="after")
    def _is_of_one_type(self) -> Self:
        over_time = self.type == "over_time"
        if (self.over_seconds is None) == over_time or (self.reservations is None) != over_time:
            raise ValueError("send `over_seconds` with `over_time`, and `reservations` with `by_reservations`")
        if self.parts is not None and not over_time:
            raise ValueError("`parts` belongs to `over_time`")
        return self

    def domain(self, now: datetime) -> Unlock:
        """Convert to the domain."""
        since = self.since or now
        if self.reservations is not None:
            return UnlockByReservations(since, self.reservations)
        assert self.over_seconds is not None, "it was validated"
        parts = self.parts or max(1, min(MAX_PARTS, self.over_seconds // DAY_SECONDS))
        return UnlockOverTime(since, timedelta(seconds=self.over_seconds), parts)


class ShareInput(Input):
    """What is promised to a budget directly under the account."""

    account: Reference
    minimum: float = Field(
        default=0.0, ge=0, le=1, description="Part of each window's budget that is kept for it until the window ends."
    )
    maximum: float = Field(
        default=1.0, gt=0, le=1, description="Part of the usable limit that its reservations may have."
    )
    weight: float = Field(default=1.0, ge=0.001, le=1000, description="In the order of reservations that wait.")


class AllocationInput(Input):
    """How an account shares out its budget among reservations."""

    rule: Rule | None = Field(
        default=None,
        description="Which of the reservations that wait is served first; of a population, for all under it.",
    )
    aging_seconds: int | None = Field(
        default=DEFAULT_AGING_SECONDS,
        ge=0,
        le=MAX_SECONDS,
        description="A reservation that has waited for so long is delayed by no younger one. 0: none is ever "
        "overtaken; null: it may be overtaken for ever.",
    )
    unlock: UnlockInput | None = Field(default=None, description="How the limit becomes usable; null: all of it is.")
    shares: list[ShareInput] = Field(default=[], max_length=64)

    def domain(self, now: datetime) -> AllocationTerms:
        """Convert to the domain.

        Raises:
            InvalidInputError: two shares are of one budget.
        """
        unlock = None if self.unlock is None else self.unlock.domain(now)
        begins = self.unlock is not None and self.unlock.since is not None
        shares = {each.account: DomainShare(each.minimum, each.maximum, each.weight) for each in self.shares}
        if len(shares) < len(self.shares):
            raise InvalidInputError("`shares` names a budget twice. Send one share of each.", field="shares")
        return AllocationTerms(self.rule, self.aging_seconds, unlock, begins, shares)


class ReplaceAllocation(Body):
    """A complete new allocation and its reason; null: steps need not be reserved any more."""

    allocation: AllocationInput | None
    reason: Reason


class Share(Output):
    """What is promised to a budget directly under the account."""

    account: str
    account_path: str
    minimum: float
    maximum: float
    weight: float


class AccountAllocation(Output):
    """The allocation of an account, and what of its limit is usable."""

    account: str
    path: str
    reservations_only: bool = Field(description="Whether it has an allocation, and so admits reserved steps only.")
    rule: SchedulingRule | None = None
    aging_seconds: int | None = None
    unlock: dict[str, Any] | None = None
    shares: list[Share]
    revision: int = Field(description="Number of changes.")
    unlocked: float = Field(description="Usable part of the limit.")
    limit: Limit
    next_unlock_at: datetime | None = Field(default=None, description="When the next part becomes usable.")
    arrivals: int | None = Field(
        default=None, description="Runs that have asked for a reservation, if they unlock the limit."
    )

    @classmethod
    def of(cls, record: AllocationRecord) -> Self:
        """Convert from the domain."""
        account, allocation = record.account, record.value
        assert account.limit is not None, "a population or budget has a limit"
        shares = {} if allocation is None else allocation.shares
        return cls(
            account=account.id,
            path=account.path,
            reservations_only=allocation is not None,
            rule=allocation and allocation.rule,
            aging_seconds=allocation and allocation.aging_seconds,
            unlock=None if allocation is None or allocation.unlock is None else _unlock(allocation.unlock),
            shares=[
                Share(
                    account=account_id,
                    account_path=record.paths[account_id],
                    minimum=share.minimum,
                    maximum=share.maximum,
                    weight=share.weight,
                )
                for account_id, share in sorted(shares.items())
            ],
            revision=account.allocation_revision,
            unlocked=float(record.unlocked),
            limit=account.limit,
            next_unlock_at=record.next_unlock_at,
            arrivals=record.arrivals,
        )


def _unlock(unlock: Unlock) -> dict[str, Any]:
    since = unlock.since.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(unlock, UnlockOverTime):
        seconds = int(unlock.over.total_seconds())
        return {"type": "over_time", "over_seconds": seconds, "parts": unlock.parts, "since": since}
    return {"type": "by_reservations", "reservations": unlock.reservations, "since": since}
