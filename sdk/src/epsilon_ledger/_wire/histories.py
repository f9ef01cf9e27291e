"""Epsilon histories of runs and accounts."""

import typing
from dataclasses import dataclass
from datetime import datetime

from epsilon_ledger._wire.events import EventCount
from epsilon_ledger._wire.frames import data_frame
from epsilon_ledger._wire.models import Limit

if typing.TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RunHistoryPoint:
    """One decision on a run.

    `events_truncated`: `events` are only the first of many, as in a page of many points.
    """

    position: int
    decision: str
    first_step: int
    count: int
    next_step: int
    epsilon: float
    delta: float
    events: tuple[EventCount, ...]
    accounts: tuple[str, ...]
    created_at: datetime
    events_truncated: bool | None = None
    attempt: int | None = None
    used: float | None = None
    binding_account: str | None = None
    reservation: str | None = None
    actor: str | None = None
    request_id: str | None = None
    hash: str | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A page of a run's decisions, thinned out; `decisions` is their total, `next_cursor` the next page."""

    run: str
    points: tuple[RunHistoryPoint, ...]
    decisions: int
    next_cursor: str | None

    def to_pandas(self) -> "pd.DataFrame":
        """Build a data frame of the points.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame(self.points, RunHistoryPoint)


@dataclass(frozen=True, slots=True)
class AccountHistoryPoint:
    """Epsilon of what was charged to an account until a time, and the used share of its present capacity."""

    created_at: datetime
    epsilon: float
    used: float


@dataclass(frozen=True, slots=True)
class ChildShare:
    """Parts of the account's `used` that a child has, one for each point; `account` None: all other children."""

    account: str | None
    path: str
    kind: str | None
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of a limit."""

    changed_at: datetime
    before: Limit
    after: Limit


@dataclass(frozen=True, slots=True)
class AccountHistory:
    """Epsilon and used share of a population or a budget over time, and what its children have used of it.

    `exact`: whether it covers all charges; otherwise its end is exact.
    """

    account: str
    limit: Limit
    points: tuple[AccountHistoryPoint, ...]
    children: tuple[ChildShare, ...]
    limit_changes: tuple[LimitChange, ...]
    decisions: int
    decisions_sampled: int
    exact: bool

    def to_pandas(self) -> "pd.DataFrame":
        """Build a data frame of the points.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame(self.points, AccountHistoryPoint)
