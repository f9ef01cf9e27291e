"""Ledger data that a process keeps between groups."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.runs.reservations import Reservation
from app.ledger.runs.run import Run
from app.ledger.step_events import PricedStep
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.dp_events import CostCache
from app.persistence.sqlite_writer import Revision
from app.service.charging.requests import OnExceed

Key = tuple[str, str]
"""Organisation id and id of an object in it."""

CostRule = tuple[NeighboringRelation, int]
"""Neighboring relation and grid version: what the cost of an event depends on."""

MOST_VALIDATED = 63
"""Groups of an organisation that are validated after its rows were found to be others' again."""

MOST_CURRENT = 20_000
"""Accounts and costs known to be current; more than are cached."""


class CountedRequest(NamedTuple):
    """A request that counting has decided, with its price and fingerprint: trainers repeat themselves."""

    priced: PricedStep
    on_exceed: OnExceed
    fingerprint: str

    def repeats(self, event: DpEvent | None, count: int, on_exceed: OnExceed) -> bool:
        """Check whether another request asks for the same."""
        step = self.priced.step
        return step.event is event and step.count == count and self.on_exceed is on_exceed


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run, its reservation, and the ids of the accounts of its path by depth and id.

    They are current if the run's account is: whatever changes them makes a new version of it.

    Args:
        asked: the request of the run that was counted last.
    """

    path: tuple[str, ...]
    run: Run
    reservation: Reservation | None = None
    asked: CountedRequest | None = None


@dataclass(slots=True)
class CurrentRows:
    """Runs with the accounts of their paths, as they are in the database or were changed by this transaction."""

    runs: dict[Key, CachedRun] = field(default_factory=dict)
    accounts: dict[Key, CountedAccount] = field(default_factory=dict)


@dataclass
class LedgerState:
    """Ledger data that is kept between transactions.

    Rows that were written or read since anybody else is known to have written are current. On SQLite they need not be
    read again, not even their versions; on PostgreSQL somebody may have written unnoticed (`groups`).

    Args:
        runs: valid if the run's account is; its path never changes.
        accounts: valid if the database has the same version and time of change (ADR 0009). `CountedSteps` charges them
            in place; others take copies.
        costs: committed costs of events, which never change.
        revision: of the file after the last group; None on PostgreSQL, and before the first one.
        current: accounts whose cached rows are current.
        stored_costs: costs of which the same is true, by organisation, relation and grid.
        validating: groups of an organisation whose rows are to be validated before they are trusted again, and how many
            were to be after the last one that should not have been.
    """

    runs: LruCache[Key, CachedRun] = field(default_factory=lambda: LruCache(16384))
    accounts: LruCache[Key, CountedAccount] = field(default_factory=lambda: LruCache(2048))
    costs: CostCache = field(default_factory=CostCache)
    revision: Revision | None = None
    current: set[Key] = field(default_factory=set)
    stored_costs: set[tuple[str, CostRule, DpEvent]] = field(default_factory=set)
    validating: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begin(self, revision: Revision | None, run_keys: Iterable[Key], rows: CurrentRows) -> None:
        """Note the revision that a group begins with, and add its runs of which nothing needs to be read.

        On SQLite, all is current only after the previous group's revision; on PostgreSQL, nothing is.
        """
        written = revision is not None and revision != self.revision
        if written or len(self.current) + len(self.stored_costs) > MOST_CURRENT:
            self.current.clear()
            self.stored_costs.clear()
        self.revision = None  # until the group is committed
        if revision is not None:
            self.find_current(run_keys, rows)

    def end(self, revision: Revision | None) -> None:
        """Note that the group that began with a revision is committed."""
        self.revision = revision and (revision[0] + 1, revision[1])

    def find_current(self, run_keys: Iterable[Key], found: CurrentRows) -> None:
        """Add the runs of which nothing needs to be read."""
        for key, cached in self.runs.get_many(run_keys).items():
            path = [(key[0], at) for at in cached.path]
            if self.current.issuperset(path):
                accounts = self.accounts.get_many(path)
                if len(accounts) == len(path):
                    found.runs[key] = cached
                    found.accounts |= accounts

    def forget(self, account_keys: Collection[Key]) -> None:
        """Forget accounts that may be ahead of the database."""
        self.accounts.forget_many(account_keys)
        self.current.difference_update(account_keys)

    def trusts(self, organisation_id: str) -> bool:
        """Check whether the current rows of an organisation may be used before they are validated; count its groups."""
        left, length = self.validating.get(organisation_id, (0, 0))
        if left:
            self.validating[organisation_id] = (left - 1, length)
        return not left

    def distrust(self, organisation_id: str) -> None:
        """Validate the rows of the next groups: of twice the number of groups, if rows are often another's."""
        _, length = self.validating.get(organisation_id, (0, 0))
        length = min(2 * length + 1, MOST_VALIDATED)
        self.validating[organisation_id] = (length, length)
