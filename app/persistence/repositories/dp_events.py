"""The DpEvents of an organisation and their permanent prices."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

from sqlalchemy import Connection, Row, bindparam, insert, select

from app.accounting.curves import RdpCurve, orders
from app.accounting.events import DpEvent, NeighboringRelation, canonical, event_from_canonical, fingerprint
from app.accounting.rdp import FORMULA_VERSION
from app.ledger.accounts.account import Account
from app.ledger.errors import LedgerUnavailableError
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.expressions import join_on
from app.persistence.tables import dp_events, event_costs
from app.persistence.tolerant_rows import Report, TolerantQuery, refuse


@dataclass(frozen=True, slots=True)
class CostTable:
    """The key of a price list: organisation, neighboring relation and grid version."""

    organisation_id: str
    relation: NeighboringRelation
    grid_version: int

    @classmethod
    def of(cls, organisation_id: str, account: Account) -> Self:
        """Get the key of the price list that applies to an account."""
        return cls(organisation_id, account.relation, account.grid_version)


@dataclass(frozen=True, slots=True)
class StoredCost:
    """A stored row of a price list."""

    fingerprint: str
    canonical_json: bytes
    prices: CostTable
    curve: RdpCurve
    formula_version: int


@lru_cache(maxsize=4096)
def read_event(description: str, key: str) -> DpEvent:
    """Parse and cache a stored event; raise LedgerUnavailableError if it was changed."""
    if hashlib.sha256(description.encode()).hexdigest() != key:
        raise LedgerUnavailableError(
            f"The ledger's description of event {key[:12]} was changed. Nothing is charged by it; "
            "run `epsilon-ledger verify`."
        )
    return event_from_canonical(description.encode())


# Built once: every group of commands executes it.
_EVENTS = TolerantQuery(select(dp_events))
_COSTS = TolerantQuery(
    select(event_costs, dp_events.c.canonical_json).join(
        dp_events, join_on(dp_events, event_costs, fingerprint="event_fingerprint")
    ),
    {
        event_costs.c.neighboring_relation: NeighboringRelation,
        event_costs.c.grid_version: orders,
        event_costs.c.curve: RdpCurve.from_bytes,
        event_costs.c.curve_delta: lambda delta: RdpCurve.from_bytes(b"", delta),
    },
)
_PRICED = select(event_costs.c.event_fingerprint).where(
    event_costs.c.organisation_id == bindparam("of_organisation"),
    event_costs.c.neighboring_relation == bindparam("of_relation"),
    event_costs.c.grid_version == bindparam("of_grid"),
    event_costs.c.event_fingerprint.in_(bindparam("of_events", expanding=True)),
)

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")


class CostCache:
    """A cache of prices, which never change."""

    def __init__(self, size: int = 2048) -> None:
        self._known: LruCache[tuple[CostTable, str], RdpCurve] = LruCache(size)

    def find(self, tx: Connection, prices: CostTable, fingerprints: Iterable[str]) -> dict[str, RdpCurve]:
        """Get the curves of priced events by fingerprint, reading unknown ones."""
        keys = set(fingerprints)
        cached = self._known.get_many([(prices, key) for key in keys])
        found = {key: curve for (_, key), curve in cached.items()}
        unknown = keys - found.keys()
        if unknown:
            read = find_curves(tx, prices, unknown)
            self._known.put_many(((prices, key), curve) for key, curve in read.items())
            found |= read
        return found

    def find_events(self, tx: Connection, prices: CostTable, events: Iterable[DpEvent]) -> dict[DpEvent, RdpCurve]:
        """Get the curves of priced events, reading unknown ones."""
        by_key = {fingerprint(event): event for event in events}
        return {by_key[key]: curve for key, curve in self.find(tx, prices, by_key).items()}

    def cached(self, prices: CostTable, events: Iterable[DpEvent]) -> dict[DpEvent, RdpCurve]:
        """Get the cached ones of some curves."""
        by_key = {(prices, fingerprint(event)): event for event in events}
        return {by_key[key]: curve for key, curve in self._known.get_many(by_key).items()}

    def put_events(self, prices: CostTable, curves: Mapping[DpEvent, RdpCurve]) -> None:
        """Cache prices of the ledger."""
        self._known.put_many(((prices, fingerprint(event)), curve) for event, curve in curves.items())


def find_curves(tx: Connection, prices: CostTable, fingerprints: Iterable[str]) -> dict[str, RdpCurve]:
    """Read the curves of priced events by fingerprint; a damaged row may name texts that are none."""
    wanted = {key for key in fingerprints if _FINGERPRINT.fullmatch(key)}
    found = select(event_costs.c.event_fingerprint, event_costs.c.curve, event_costs.c.curve_delta).where(
        event_costs.c.organisation_id == prices.organisation_id,
        event_costs.c.neighboring_relation == str(prices.relation),
        event_costs.c.grid_version == prices.grid_version,
        event_costs.c.event_fingerprint.in_(wanted),
    )
    with tx.execute(found) as rows:  # a damaged curve leaves no cursor open
        return {row.event_fingerprint: RdpCurve.from_bytes(row.curve, row.curve_delta) for row in rows}


def find_events(tx: Connection, organisation_id: str, fingerprints: Iterable[str]) -> dict[str, DpEvent]:
    """Read events by fingerprint; one that was changed raises LedgerUnavailableError."""
    wanted = {key for key in fingerprints if _FINGERPRINT.fullmatch(key)}
    found = select(dp_events.c.fingerprint, dp_events.c.canonical_json).where(
        dp_events.c.organisation_id == organisation_id, dp_events.c.fingerprint.in_(wanted)
    )
    with tx.execute(found) as rows:
        return {row.fingerprint: read_event(row.canonical_json, row.fingerprint) for row in rows}


def without_curve(tx: Connection, prices: CostTable, events: Iterable[DpEvent]) -> list[DpEvent]:
    """List the events without a price."""
    by_key = {fingerprint(event): event for event in events}
    asked = {
        "of_organisation": prices.organisation_id,
        "of_relation": str(prices.relation),
        "of_grid": prices.grid_version,
        "of_events": list(by_key),
    }
    found = set(tx.execute(_PRICED, asked).scalars()) if by_key else set()
    return [event for key, event in by_key.items() if key not in found]


def add_curves(tx: Connection, prices: CostTable, curves: Mapping[DpEvent, RdpCurve]) -> None:
    """Add prices of events that have none."""
    remember(tx, prices.organisation_id, curves)
    tx.execute(
        insert(event_costs),
        [
            {
                "organisation_id": prices.organisation_id,
                "event_fingerprint": fingerprint(event),
                "neighboring_relation": str(prices.relation),
                "grid_version": prices.grid_version,
                "curve": curve.to_bytes(),
                "curve_delta": curve.delta,
                "formula_version": FORMULA_VERSION,
            }
            for event, curve in curves.items()
        ],
    )


def remember(tx: Connection, organisation_id: str, events: Iterable[DpEvent]) -> None:
    """Add the events that the organisation has not used before."""
    wanted = {fingerprint(event): canonical(event).decode() for event in events}
    known = select(dp_events.c.fingerprint).where(
        dp_events.c.organisation_id == organisation_id, dp_events.c.fingerprint.in_(wanted)
    )
    new = wanted.keys() - set(tx.execute(known).scalars())
    if new:
        tx.execute(
            insert(dp_events),
            [
                {"organisation_id": organisation_id, "fingerprint": key, "canonical_json": wanted[key]}
                for key in sorted(new)
            ],
        )


def descriptions(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> Iterator[tuple[str, str, bytes]]:
    """Yield organisation, fingerprint and canonical description of every used event."""
    for row in _EVENTS.rows(tx, organisation_id, report):
        yield row.organisation_id, row.fingerprint, row.canonical_json.encode()


def list_all(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> Iterator[StoredCost]:
    """List the prices of one or every organisation, reporting damage."""
    return _COSTS.objects(tx, organisation_id, _stored, report)


def _stored(row: Row[Any]) -> StoredCost:
    return StoredCost(
        row.event_fingerprint,
        row.canonical_json.encode(),
        CostTable(row.organisation_id, NeighboringRelation(row.neighboring_relation), row.grid_version),
        RdpCurve.from_bytes(row.curve, row.curve_delta),
        row.formula_version,
    )
