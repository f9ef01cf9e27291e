"""Context and report of a verification."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve, Usage
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.accounts.account_records import Attestation, Block, Counts
from app.ledger.filter.limits import Limit
from app.ledger.plan.plan_filter import repeated
from app.ledger.step_events import StepEvent
from app.ledger.verification import Discrepancy
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.repositories.raw_rows import Ancestor, Key, StoredReservation
from app.persistence.tolerant_rows import DAMAGED, DamagedCell
from app.service.verification.audit_replay import AuditState, RecordedAccount
from app.service.verification.registrations import Tuning

PRICES_AT_ONCE = 500
"""Costs per statement; a population may have as many events as steps."""

CHECKED: Final = ("accounts", "runs", "decisions", "reservations", "charges", "steps", "audit_events")
"""Kinds of objects that a verification counts; accounts include runs, and charges are charged step events."""

STOPPING: Final = {
    "accounts": "id",
    **dict.fromkeys(
        ("account_ancestors", "partition_attestations", "balances", "data_blocks", "populations", "runs"), "account_id"
    ),
    **dict.fromkeys(
        ("attempts", "decisions", "reservations", "run_budgets", "run_origins", "decision_ranges", "decision_events"),
        "run_id",
    ),
}
"""By table, the column with the account that is unproven if the row cannot be read."""


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Discrepancies, quarantines, and the number of objects checked.

    Args:
        checked: number of objects of each kind in `CHECKED`.
        organisation_id: None: every organisation.
    """

    checked: Mapping[str, int]
    discrepancies: tuple[Discrepancy, ...]
    quarantined: Mapping[Key, str]
    organisation_id: str | None = None

    @property
    def sound(self) -> bool:
        """Whether there are no discrepancies."""
        return not self.discrepancies

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each discrepancy."""
        return tuple(each.detail for each in self.discrepancies)

    @property
    def unproven(self) -> dict[Key, str]:
        """The first discrepancy of each account, as the reason of its quarantine."""
        found: dict[Key, str] = {}
        for each in self.discrepancies:
            if each.organisation_id is not None and each.account_id is not None:
                found.setdefault((each.organisation_id, each.account_id), each.detail)
        return found

    @property
    def liftable(self) -> dict[Key, str]:
        """The quarantines that two people may lift: neither the account nor its organisation has a discrepancy."""
        unproven = self.unproven
        whole = {each.organisation_id for each in self.discrepancies if each.account_id is None}
        return {key: why for key, why in self.quarantined.items() if key not in unproven and not whole & {key[0], None}}

    def revised(self, again: Sequence["VerificationReport"]) -> "VerificationReport":
        """Replace the results of organisations by those of their second verification."""
        verified = {one.organisation_id for one in again}
        others = [each for each in self.discrepancies if each.organisation_id not in verified]
        found = [*others, *(each for one in again for each in one.discrepancies)]
        quarantined = {key: why for key, why in self.quarantined.items() if key[0] not in verified}
        quarantined.update({key: why for one in again for key, why in one.quarantined.items()})
        # The first report has event descriptions without organisation; the second one finds them again.
        distinct = {(each.account_id, each.detail): each for each in found}
        return replace(self, discrepancies=tuple(distinct.values()), quarantined=quarantined)


@dataclass
class Balance:
    """An account with the counts of its charged events, by fingerprint.

    Counts are exact and small; curves are computed at the end.

    Args:
        counts: as they are kept; None: they are not.
        reported: those of `spent` that no decision admitted beforehand; they may exceed the limit.
        held: reserved by active reservations.
        allowed: steps that active reservations may still take, or have taken and not settled, without cancelled ones.
        left: number of steps that active reservations may still take.
        revoked: forfeited steps that a lowered limit had cancelled; they were not admitted under that limit.
        workloads: events that may have determined the filter's weights.
        limits: in the decision chains.
        first_versions: least version of a population in a charge to the account, by population.
    """

    account: Account
    counts: Counts | None = None
    spent: Counter[str] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    left: int = 0
    revoked: Counter[str] = field(default_factory=Counter)
    workloads: set[str] = field(default_factory=set)
    limits: set[Limit] = field(default_factory=set)
    first_versions: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Path and id."""
        return f"{self.account.path} ({self.account.id})"


@dataclass
class VerificationContext:
    """Data and findings of a verification in progress.

    Curves are large. Those of a run are dropped when it is checked, and costs are read again when needed.

    Args:
        tx: sees one snapshot.
        sound: events whose stored cost is right.
        balances: of readable populations and budgets, and of the run being checked.
        paths: accounts that a charge affects, by the charged account.
        states: by the audit log, by organisation.
        charged: budgets that each run charges, in order.
        origins: runs that each run starts from.
        attempts: the first step of each attempt by number, by run.
        ranges: the actor of each range of decisions by its first position, by run.
        registered: steps that runs declared to which a filter was tuned.
        children: child budgets, once all are read.
        reservations_of: by run.
        damaged: unreadable cells: table, column and key.
    """

    tx: Connection
    sound: set[tuple[CostTable, str]] = field(default_factory=set)
    book: CostCache = field(default_factory=CostCache)
    balances: dict[Key, Balance] = field(default_factory=dict)
    paths: dict[Key, list[Ancestor]] = field(default_factory=dict)
    states: dict[str, AuditState] = field(default_factory=dict)
    charged: dict[Key, list[str]] = field(default_factory=dict)
    origins: dict[Key, set[str]] = field(default_factory=dict)
    attempts: dict[Key, dict[int, int]] = field(default_factory=dict)
    ranges: dict[Key, dict[int, str]] = field(default_factory=dict)
    attested: dict[Key, Attestation] = field(default_factory=dict)
    blocks: dict[Key, Block] = field(default_factory=dict)
    registered: dict[Key, tuple[StepEvent, ...]] = field(default_factory=dict)
    children: dict[Key, list[Key]] = field(default_factory=dict)
    reservations: dict[Key, StoredReservation] = field(default_factory=dict)
    reservations_of: dict[Key, list[StoredReservation]] = field(default_factory=dict)
    discrepancies: list[Discrepancy] = field(default_factory=list)
    damaged: set[tuple[str, str, str]] = field(default_factory=set)
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHECKED, 0))

    def add(self, key: Key, detail: str, position: int | None = None) -> None:
        """Report a discrepancy of an account."""
        name = self.balances[key].name
        self.discrepancies.append(Discrepancy(key[0], key[1], position, f"{name}: {detail}"))

    def state(self, organisation_id: str) -> AuditState | None:
        """Get the state of an organisation by its audit log; None: unknown, or a broken log."""
        state = self.states.get(organisation_id)
        return state if state is not None and state.error is None else None

    def recorded(self, key: Key) -> RecordedAccount | None:
        """Get an account by the audit log; None: unknown, or a broken log."""
        state = self.state(key[0])
        return None if state is None else state.accounts.get(key[1])

    def anchors(self, key: Key) -> Mapping[int, str]:
        """Get the anchored hashes of a run's chain, by number of decisions."""
        state = self.state(key[0])
        return {} if state is None else state.anchors.get(key[1], {})

    def report(self, cell: DamagedCell) -> None:
        """Report an unreadable cell, which leaves the account of its row unproven."""
        named = (cell.table, cell.column, repr(cell.row))
        if named in self.damaged:
            return
        self.damaged.add(named)
        owner = cell.row.get("id" if cell.table == "organisations" else "organisation_id")
        account = cell.row.get(STOPPING[cell.table]) if cell.table in STOPPING else None
        key = [name if isinstance(name, str) else None for name in (owner, account)]
        balance = self.balances.get((key[0] or "", key[1] or ""))
        self.discrepancies.append(
            Discrepancy(key[0], key[1], None, f"{balance.name}: {cell}." if balance else f"{cell}.")
        )

    @contextmanager
    def guarded(self, key: Key) -> Iterator[None]:
        """Report damaged data of an account without ending the verification."""
        try:
            yield
        except DAMAGED as error:
            self.add(key, f"it cannot be judged: {type(error).__name__} {error}.")

    def tunings(self, key: Key) -> list[Tuning | None]:
        """List the tunings of an account under each limit to its registered runs."""
        recorded = self.recorded(key)
        return [None] if recorded is None else [period.tuning for period in recorded.limits]

    def stages(self, key: Key) -> list[Account]:
        """List the account under each limit with its weights, the present one last."""
        account, recorded = self.balances[key].account, self.recorded(key)
        before = [] if recorded is None else recorded.limits[:-1]
        return [*(replace(account, limit=period.limit, weights=period.weights) for period in before), account]

    def upwards(self, key: Key) -> Iterator[Balance]:
        """Iterate over an account and its ancestors, by the first budget of several."""
        seen: set[str] = set()
        balance = self.balances.get(key)
        while balance is not None and balance.account.id not in seen:  # a damaged tree may have a cycle
            yield balance
            seen.add(balance.account.id)
            balance = self.balances.get((key[0], balance.account.parent_id or ""))

    def above(self, key: Key) -> list[Balance]:
        """List the ancestors that a charge affects by their parents, by depth and id."""
        return self._reached(key, every=True)

    def adding(self, key: Key) -> list[Balance]:
        """List the ancestors that add the charge up, without a parallel account between."""
        return self._reached(key, every=False)

    def _reached(self, key: Key, *, every: bool) -> list[Balance]:
        found: dict[str, Balance] = {}
        parent = self.balances[key].account.parent_id
        wanted = [*self.charged.get(key, ()), parent]
        while wanted:
            balance = self.balances.get((key[0], wanted.pop() or ""))
            if balance is None or balance.account.id in found:  # a damaged tree may have a cycle
                continue
            if every or balance.account.partitions_per_unit is None:
                found[balance.account.id] = balance
                wanted.append(balance.account.parent_id)
        return sorted(found.values(), key=lambda one: (one.account.depth, one.account.id))

    def index_children(self) -> None:
        """Index the children of populations and budgets, once all are read."""
        for key, balance in self.balances.items():
            above = self.balances.get((key[0], balance.account.parent_id or ""))
            if above is not None and above.account.depth < balance.account.depth:  # excludes cycles of a damaged tree
                self.children.setdefault((key[0], above.account.id), []).append(key)

    def cost(self, organisation_id: str, account: Account, counts: Mapping[str, int]) -> RdpCurve | None:
        """Compute the exact cost of repeated events; None: one has no sound cost."""
        prices = CostTable.of(organisation_id, account)
        if any((prices, event) not in self.sound for event in counts):
            return None
        total = zero_curve(account.grid_version)
        for event, price in self.prices(prices, counts):
            total = total + price.times(counts[event])
        return total.using(self._used(organisation_id, account, counts))

    def _used(self, organisation_id: str, account: Account, counts: Mapping[str, int]) -> Usage:
        found = {owner: (0,) * len(stored) for owner, stored in account.spent.used.items()}
        above = {owner: self.balances.get((organisation_id, owner)) for owner in found}
        plans = {owner: each.account.plan for owner, each in above.items() if each is not None}
        live = {owner: plan.workload for owner, plan in plans.items() if plan is not None}
        events = dp_events.find_events(self.tx, organisation_id, counts) if live else {}
        for owner, workload in live.items():
            for key, event in events.items():
                found[owner] = repeated(found[owner], workload.cost(event), counts[key])
        return found

    def prices(self, prices: CostTable, events: Iterable[str]) -> Iterator[tuple[str, RdpCurve]]:
        """Iterate over the sound costs of events, per repetition."""
        wanted = [event for event in events if (prices, event) in self.sound]
        for begin in range(0, len(wanted), PRICES_AT_ONCE):
            yield from self.book.find(self.tx, prices, wanted[begin : begin + PRICES_AT_ONCE]).items()
