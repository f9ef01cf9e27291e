"""What a verification knows so far, and what it finds."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account, zero_curve
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.persistence.repositories.partitions import Attestation, Block
from app.persistence.repositories.raw_rows import Ancestor, Key, StoredReservation
from app.persistence.tolerant import DAMAGED, DamagedCell
from app.service.verification.audit_replay import AuditState, Terms

PRICES_AT_ONCE = 500
"""How many prices are asked of the database in one statement; a population may have as many events as steps."""

STOPPING: Final = {
    "accounts": "id",
    **dict.fromkeys(
        ("account_ancestors", "partition_attestations", "balances", "data_blocks", "populations", "runs"), "account_id"
    ),
    **dict.fromkeys(("attempts", "decisions", "reservations", "run_budgets", "decision_events"), "run_id"),
}
"""By table, the column that names the account that nothing proves if the row cannot be read."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something that does not agree.

    Args:
        organisation_id: whose ledger; None for an event's description where every ledger is verified.
        account_id: the account whose balance is not proven by it; None for a price.
        position: the first bad decision of the run's chain; None where it is no decision.
        detail: a sentence for a person.
    """

    organisation_id: str | None
    account_id: str | None
    position: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was recomputed, and what did not agree.

    Args:
        accounts: how many were recomputed.
        runs: how many of them are runs.
        decisions: how many were hashed again.
        reservations: how many were balanced.
        charges: how many charged step events were summed.
        steps: how many steps these stand for.
        acts: how many acts were hashed again.
        faults: everything that disagrees; none if the ledger is sound.
        quarantined: why writes to an account are stopped.
        organisation_id: whose ledger; None: of every organisation.
    """

    accounts: int
    runs: int
    decisions: int
    reservations: int
    charges: int
    steps: int
    acts: int
    faults: tuple[Discrepancy, ...]
    quarantined: Mapping[Key, str]
    organisation_id: str | None = None

    @property
    def sound(self) -> bool:
        """Whether everything agrees."""
        return not self.faults

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each disagreement."""
        return tuple(fault.detail for fault in self.faults)

    @property
    def unproven(self) -> dict[Key, str]:
        """Why writes to an account are to be stopped: its first fault."""
        found: dict[Key, str] = {}
        for fault in self.faults:
            if fault.organisation_id is not None and fault.account_id is not None:
                found.setdefault((fault.organisation_id, fault.account_id), fault.detail)
        return found

    @property
    def liftable(self) -> dict[Key, str]:
        """Why accounts are stopped in which nothing is found wrong any more: two persons may let charges pass again."""
        unproven = self.unproven
        whole = {fault.organisation_id for fault in self.faults if fault.account_id is None}
        return {key: why for key, why in self.quarantined.items() if key not in unproven and not whole & {key[0], None}}

    def revised(self, again: Sequence["VerificationReport"]) -> "VerificationReport":
        """This one, with what was found when some organisations were looked at again in the place of what it found."""
        looked_at = {one.organisation_id for one in again}
        others = [fault for fault in self.faults if fault.organisation_id not in looked_at]
        found = [*others, *(fault for one in again for fault in one.faults)]
        stopped = {key: why for key, why in self.quarantined.items() if key[0] not in looked_at}
        stopped.update({key: why for one in again for key, why in one.quarantined.items()})
        # An event's description is nobody's own where every ledger is verified, and is found again in its own.
        faults = {(fault.account_id, fault.detail): fault for fault in found}
        return replace(self, faults=tuple(faults.values()), quarantined=stopped)


def merge_reports(found: Sequence[VerificationReport]) -> VerificationReport:
    """What was found on several databases, each of which has organisations of its own."""
    return VerificationReport(
        accounts=sum(one.accounts for one in found),
        runs=sum(one.runs for one in found),
        decisions=sum(one.decisions for one in found),
        reservations=sum(one.reservations for one in found),
        charges=sum(one.charges for one in found),
        steps=sum(one.steps for one in found),
        acts=sum(one.acts for one in found),
        faults=tuple(fault for one in found for fault in one.faults),
        quarantined={key: why for one in found for key, why in one.quarantined.items()},
    )


@dataclass
class Balance:
    """An account, and how many repetitions of which event its rows add up to.

    Counts are exact and few; a curve is what they cost, in the end.

    Args:
        account: as it is kept.
        spent: charged, by the event's fingerprint.
        reported: those of them that nobody was asked for beforehand: they may lie over the limit.
        held: set aside by reservations.
        allowed: what active plans may still take, or have taken and not settled; a lowered limit withdraws the rest.
        left: how many steps active plans may still take.
        withdrawn: what was forfeited of withdrawn steps: nobody let it through under the limit then in force.
        workloads: events by which the weights of its filter may have been chosen.
        limits: epsilon and delta of it that chained decisions name.
        misread: whether its filter reads an epsilon that is not the one a chained decision read.
    """

    account: Account
    spent: Counter[str] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    left: int = 0
    withdrawn: Counter[str] = field(default_factory=Counter)
    workloads: set[str] = field(default_factory=set)
    limits: set[tuple[float, float]] = field(default_factory=set)
    misread: bool = False

    @property
    def name(self) -> str:
        """Its path and its id."""
        return f"{self.account.path} ({self.account.id})"


@dataclass
class VerificationContext:
    """What a verification has read and found so far.

    Curves are large. Those of a run are dropped as soon as it is judged, and a price is read again when it is needed.

    Args:
        tx: the verification's transaction, which sees one state of the database.
        sound: events whose price is what they cost.
        book: prices that were read lately.
        balances: of populations and budgets whose row can be read, and of the run that is judged at the moment.
        paths: the accounts that a charge touches, by the account that is charged.
        told: what the acts of each organisation say.
        charged: the budgets that each run charges, in order.
        attested: why the children of accounts are disjoint parts.
        blocks: the data that budgets stand for.
        children: the budgets directly beneath an account, once all are read.
        reservations: every one.
        plans: the same, by run.
        faults: what does not agree.
        damaged: cells that cannot be read: table, column and key of the row; there may be as many as rows.
        accounts: how many were recomputed; what follows counts as in `Verification`.
    """

    tx: Connection
    sound: set[tuple[CostTable, str]] = field(default_factory=set)
    book: CostCache = field(default_factory=CostCache)
    balances: dict[Key, Balance] = field(default_factory=dict)
    paths: dict[Key, list[Ancestor]] = field(default_factory=dict)
    told: dict[str, AuditState] = field(default_factory=dict)
    charged: dict[Key, list[str]] = field(default_factory=dict)
    attested: dict[Key, Attestation] = field(default_factory=dict)
    blocks: dict[Key, Block] = field(default_factory=dict)
    children: dict[Key, list[Key]] = field(default_factory=dict)
    reservations: dict[Key, StoredReservation] = field(default_factory=dict)
    plans: dict[Key, list[StoredReservation]] = field(default_factory=dict)
    faults: list[Discrepancy] = field(default_factory=list)
    damaged: set[tuple[str, str, str]] = field(default_factory=set)
    accounts: int = 0
    runs: int = 0
    decisions: int = 0
    charges: int = 0
    steps: int = 0

    def add(self, key: Key, detail: str, position: int | None = None) -> None:
        """Note what does not agree about an account, named by its path and id."""
        name = self.balances[key].name
        self.faults.append(Discrepancy(key[0], key[1], position, f"{name}: {detail}"))

    def terms(self, key: Key) -> Terms | None:
        """What acts say of an account; None: nothing, or nothing that can be believed."""
        told = self.told.get(key[0])
        return told.terms.get(key[1]) if told is not None and told.fault is None else None

    def anchors(self, key: Key) -> Mapping[int, str]:
        """The hash of a run's chain after so many decisions, as the organisation's chain has it."""
        told = self.told.get(key[0])
        return told.anchors.get(key[1], {}) if told is not None and told.fault is None else {}

    def withdrawn(self, organisation_id: str, reservation_id: str) -> Counter[str] | None:
        """What lowered limits have withdrawn of a plan; None: nobody knows, the chain cannot be believed."""
        told = self.told.get(organisation_id)
        if told is None or told.fault is not None:
            return None
        return told.withdrawn.get(reservation_id, Counter())

    def report(self, cell: DamagedCell) -> None:
        """Note a cell that cannot be read; it stops the account to which its row belongs."""
        named = (cell.table, cell.column, repr(cell.row))
        if named in self.damaged:
            return
        self.damaged.add(named)
        owner = cell.row.get("id" if cell.table == "organisations" else "organisation_id")
        account = cell.row.get(STOPPING[cell.table]) if cell.table in STOPPING else None
        key = [name if isinstance(name, str) else None for name in (owner, account)]
        balance = self.balances.get((key[0] or "", key[1] or ""))
        self.faults.append(Discrepancy(key[0], key[1], None, f"{balance.name}: {cell}." if balance else f"{cell}."))

    @contextmanager
    def guarded(self, key: Key) -> Iterator[None]:
        """Let nothing that is said of one account keep the others from being judged."""
        try:
            yield
        except DAMAGED as fault:
            self.add(key, f"it cannot be judged: {type(fault).__name__} {fault}.")

    def stages(self, key: Key) -> list[Account]:
        """An account under each limit that it has had, with the weights that its filter then had; itself last."""
        account, terms = self.balances[key].account, self.terms(key)
        before = [] if terms is None else terms.stages[:-1]
        return [*(replace(account, limit=stage.limit, weights=stage.weights) for stage in before), account]

    def believes(self, organisation_id: str) -> bool:
        """Whether the chain of an organisation's acts is whole."""
        return organisation_id not in self.told or self.told[organisation_id].fault is None

    def upwards(self, key: Key) -> Iterator[Balance]:
        """An account and those above it, by their parents; of several budgets, above the first."""
        seen: set[str] = set()
        balance = self.balances.get(key)
        while balance is not None and balance.account.id not in seen:  # a damaged tree may hold a circle
            yield balance
            seen.add(balance.account.id)
            balance = self.balances.get((key[0], balance.account.parent_id or ""))

    def above(self, key: Key) -> list[Balance]:
        """The accounts that a charge to an account touches besides, by depth and id, from their parents."""
        return self._reached(key, every=True)

    def adding(self, key: Key) -> list[Balance]:
        """Those of them whose spending is the sum of it: there are no disjoint parts between."""
        return self._reached(key, every=False)

    def _reached(self, key: Key, *, every: bool) -> list[Balance]:
        found: dict[str, Balance] = {}
        parent = self.balances[key].account.parent_id
        wanted = [*self.charged.get(key, ()), parent]
        while wanted:
            balance = self.balances.get((key[0], wanted.pop() or ""))
            if balance is None or balance.account.id in found:  # a damaged tree may hold a circle
                continue
            if every or balance.account.partitions_per_unit is None:
                found[balance.account.id] = balance
                wanted.append(balance.account.parent_id)
        return sorted(found.values(), key=lambda one: (one.account.depth, one.account.id))

    def know_children(self) -> None:
        """Note what lies directly beneath each population and budget; all of them have been read."""
        for key, balance in self.balances.items():
            above = self.balances.get((key[0], balance.account.parent_id or ""))
            if above is not None and above.account.depth < balance.account.depth:  # nobody falls in a circle for ever
                self.children.setdefault((key[0], above.account.id), []).append(key)

    def cost(self, organisation_id: str, account: Account, counts: Mapping[str, int]) -> RdpCurve | None:
        """What repetitions of events cost under an account's rules, exactly; None if one has no sound price."""
        prices = CostTable(organisation_id, account.relation, account.grid_version)
        if any((prices, event) not in self.sound for event in counts):
            return None
        total = zero_curve(account.grid_version)
        for event, price in self.prices(prices, counts):
            total = total + price.times(counts[event])
        return total

    def prices(self, prices: CostTable, events: Iterable[str]) -> Iterator[tuple[str, RdpCurve]]:
        """Those of the events that have a sound price, each with what one repetition costs."""
        wanted = [event for event in events if (prices, event) in self.sound]
        for begin in range(0, len(wanted), PRICES_AT_ONCE):
            yield from self.book.find(self.tx, prices, wanted[begin : begin + PRICES_AT_ONCE]).items()
