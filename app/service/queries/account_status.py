"""Status of accounts: spending, reservations, what is free, burn rate, and what people wrote about them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.filter.filters import Limit
from app.ledger.scheduling.availability import Available
from app.persistence.repositories import account_metadata, waiting
from app.persistence.repositories.usage_history import Reading
from app.service.accounts.locked_limits import LockedLimit
from app.service.alerts.forecasts import base_readings, extrapolate
from app.service.auth.request_context import RequestContext

SOON: Final = timedelta(days=7)
AHEAD: Final = timedelta(days=30)

NEARLY_EXHAUSTED: Final = 0.98
LOW: Final = 0.8
HALF: Final = 0.5


class Severity(StrEnum):
    """How urgent the state of an account is, most urgent first."""

    OVER = "over"
    EXHAUSTED = "exhausted"
    LOW = "low"
    HALF = "half"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """The state of a population or a budget.

    What is `free` can really be taken now: the least that its limit and those above it leave. Severity and order use
    it, but for what is locked: that cannot be taken now, and is not used up either.

    Args:
        limit: None if the account's row is damaged, so that its spending is unknown.
        epsilon: spent, by the account's filter at its delta.
        epsilon_including_reserved: spent and reserved.
        share: of the limit that is spent, as the filter counts it.
        quarantine: the reason, if the account is quarantined.
        per_day: growth of the share a day; None if there is not enough data.
        empty_at: when the limit is reached at that rate; None if never or unknown.
        now: time of reading; None until the burn rate is known.
        parallel: whether its children are disjoint parts.
        room: epsilon that its own limit leaves, at its delta.
        available: epsilon that can be taken now, and the account that limits it; None: only its own limit is known.
        locked: what of its own limit is unlocked, if that is unlocked in parts.
        reservations_only: whether it admits steps of plans only.
        waiting: number of plans that wait for it; 0 until `with_waiting_reservations`.
        path_empty_at: when the first limit along its path is reached, and `path_empty_by` the path of that account.
        display_name: what people see instead of its name; None until `with_metadata`, or if nobody gave one.
        owner: likewise.
        archived: whether it or an account above it is archived, so that nothing can be taken.
    """

    id: str
    kind: AccountKind
    parent_id: str | None
    population_id: str
    name: str
    path: str
    depth: int
    created_at: datetime
    quarantine: str | None
    limit: Limit | None = None
    epsilon: float = math.inf
    epsilon_including_reserved: float = math.inf
    has_reserved: bool = False
    share: float = math.inf
    per_day: float | None = None
    empty_at: datetime | None = None
    now: datetime | None = None
    parallel: bool = False
    room: float | None = None
    available: Available | None = None
    locked: LockedLimit | None = None
    reservations_only: bool = False
    waiting: int = 0
    path_empty_at: datetime | None = None
    path_empty_by: str | None = None
    display_name: str | None = None
    owner: str | None = None
    archived: bool = False

    @property
    def title(self) -> str:
        """What people see: the display name, or the name."""
        return self.display_name or self.name

    @property
    def remaining(self) -> float:
        """Epsilon that its own limit leaves: neither spent nor reserved, at its own delta; at least 0."""
        if self.limit is None:
            return 0.0
        if self.room is not None:
            return self.room
        return max(0.0, self.limit.epsilon - max(self.epsilon, self.epsilon_including_reserved))

    @property
    def free(self) -> float:
        """Epsilon that can really be taken now: the least along the path."""
        if self.quarantine is not None or self.archived:
            return 0.0
        return self.remaining if self.available is None else self.available.epsilon

    @property
    def locked_by(self) -> Available | None:
        """What limits it by what is locked, if unlocking leaves more."""
        found = self.available
        return None if found is None or found.when_unlocked is None or self.quarantine is not None else found

    @property
    def blocked_by(self) -> Available | None:
        """What limits it more than its own limit, if another account does; nothing is locked then."""
        found = self.available
        if found is not None and found.when_unlocked is not None:
            found = found.when_unlocked
        return None if found is None or found.account_id == self.id else found

    @property
    def is_locked(self) -> bool:
        """Whether next to nothing can be taken until more is unlocked."""
        if self.limit is None or self.locked_by is None or self.utilisation >= NEARLY_EXHAUSTED:
            return False
        return self.free <= (1 - NEARLY_EXHAUSTED) * self.limit.epsilon

    @property
    def reserved(self) -> float:
        """Epsilon that reservations add; infinite if the loss is unbounded."""
        together = self.epsilon_including_reserved
        return math.inf if math.isinf(together) else together - self.epsilon

    @property
    def own_utilisation(self) -> float:
        """Share of the limit that is spent or reserved."""
        return math.inf if self.limit is None else max(self.share, self.epsilon_including_reserved / self.limit.epsilon)

    @property
    def is_blocked(self) -> bool:
        """Whether an account above leaves next to nothing of what its own limit leaves."""
        return self.own_utilisation < NEARLY_EXHAUSTED <= self.utilisation

    @property
    def utilisation(self) -> float:
        """Share of the limit that is spent, reserved, or cannot be taken because of an account above.

        What is locked is not.
        """
        if self.limit is None:
            return math.inf
        own, blocked_by = self.own_utilisation, self.blocked_by
        if blocked_by is None:
            return own
        left = 0.0 if self.quarantine is not None else blocked_by.epsilon
        return max(own, 1 - left / self.limit.epsilon)

    @property
    def time_to_exhaustion(self) -> timedelta | None:
        """Time until a limit along the path is reached, if the account is in use; None if never or unknown."""
        ends_at = self.empty_at
        if self.per_day and self.path_empty_at is not None:
            ends_at = self.path_empty_at
        return None if ends_at is None or self.now is None else max(timedelta(0), ends_at - self.now)

    @property
    def severity(self) -> Severity:
        """How urgent the account's state is."""
        ends_in = self.time_to_exhaustion
        if self.limit is None or self.epsilon > self.limit.epsilon or self.quarantine is not None:
            return Severity.OVER
        used = self.utilisation
        if used >= NEARLY_EXHAUSTED:
            return Severity.EXHAUSTED
        if used >= LOW or (ends_in is not None and ends_in <= SOON):
            return Severity.LOW
        return Severity.HALF if used >= HALF or (ends_in is not None and ends_in <= AHEAD) else Severity.OK

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Sorts the most urgent account first."""
        return _SEVERITIES.index(self.severity), -self.utilisation, self.path


_SEVERITIES: Final = tuple(Severity)


def with_burn_rate(
    tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus], above: Sequence[AccountStatus] = ()
) -> list[AccountStatus]:
    """Add burn rate and forecast to the accounts that are shown; `above` has those above the first of them."""
    every = {each.id: each for each in (*above, *statuses)}
    bases = base_readings(
        tx, context.organisation_id, {key: each.created_at for key, each in every.items()}, context.now
    )
    rated = {key: _with_rate(each, bases.get(key), context.now) for key, each in every.items()}
    return [_with_path_forecast(rated[each.id], rated) for each in statuses]


def with_metadata(tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]) -> list[AccountStatus]:
    """Add what people wrote about the accounts that are shown. It is never cached: it leaves the account as it is."""
    found = account_metadata.find_many(tx, context.organisation_id, [each.id for each in statuses])

    def described(status: AccountStatus) -> AccountStatus:
        about = found.get(status.id)
        if about is None:
            return status
        return replace(status, display_name=about.metadata.display_name, owner=about.metadata.owner)

    return list(map(described, statuses))


def with_waiting_reservations(
    tx: Connection, context: RequestContext, statuses: Sequence[AccountStatus]
) -> list[AccountStatus]:
    """Add how many plans wait for each of the accounts that are shown."""
    found = waiting.counts(tx, context.organisation_id)
    return [replace(each, waiting=found[each.id]) if each.id in found else each for each in statuses]


def _with_path_forecast(status: AccountStatus, rated: Mapping[str, AccountStatus]) -> AccountStatus:
    """Add when the first limit along the path is reached.

    Accounts from a parallel one upwards are left out: their pace is that of the part that lost most.
    """
    first = at = status
    while (parent := rated.get(at.parent_id or "")) is not None and not parent.parallel:
        at = parent
        if at.empty_at is not None and (first.empty_at is None or at.empty_at < first.empty_at):
            first = at
    return status if first.empty_at is None else replace(status, path_empty_at=first.empty_at, path_empty_by=first.path)


def ancestors(statuses: Iterable[AccountStatus], of: Iterable[str]) -> set[str]:
    """Get the ids of accounts and their ancestors, as far as they are among the statuses."""
    above = {each.id: each.parent_id for each in statuses}
    found: set[str] = set()
    for account_id in of:
        at: str | None = account_id
        while at is not None and at in above and at not in found:
            found.add(at)
            at = above[at]
    return found


def _with_rate(status: AccountStatus, base: Reading | None, now: datetime) -> AccountStatus:
    if status.limit is None:
        return status
    seen = extrapolate(status.share, base, now)
    return replace(status, per_day=seen.forecast.per_day, empty_at=seen.exhaustion_at, now=now)
