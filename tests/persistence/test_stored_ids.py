"""Ids of organisations and accounts are stored as integers and hashes as bytes, and readers notice neither."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import BigInteger, Column, LargeBinary, insert, select, type_coerce

from app.ledger.ids import NO_NUMBER, PREFIXES, bounds, number_of
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.expressions import as_text
from app.persistence.tables import accounts, decisions, dp_events, metadata, organisations, runs
from app.persistence.tables.base import NumberedId, Sha256Hex, _StoredNumbers
from tests.api.trainer import hired
from tests.conftest import Ledger

pytestmark = pytest.mark.both_databases


def _columns(kind: type[NumberedId | Sha256Hex]) -> list[Column[str]]:
    return [column for table in metadata.sorted_tables for column in table.c if isinstance(column.type, kind)]


def _charge(ledger: Ledger) -> None:
    assert hired(ledger).steps(count=2).status_code == 200


FURNISHED = {"ledger": _charge}


def _add_extremes(database: Database) -> None:
    """Organisations with the least and the greatest id of each prefix: none has such an id, but any could."""
    ids = [public_id for prefix in PREFIXES for public_id in bounds(prefix)]
    with database.write(ALL_TENANTS) as tx:
        rows = [{"id": public_id, "name": public_id, "created_at": datetime.now(UTC)} for public_id in ids]
        tx.execute(insert(organisations), rows)


def test_stored_id_is_an_integer_in_the_order_of_its_text(ledger: Ledger) -> None:
    _add_extremes(ledger.database)
    seen: set[str] = set()
    with ledger.database.read(ALL_TENANTS) as tx:
        for column in _columns(NumberedId):
            found = select(column, as_text(column), type_coerce(column, BigInteger))
            rows = tx.execute(found.where(column.is_not(None)).order_by(column)).all()
            assert rows == sorted((public_id, public_id, number_of(public_id)) for public_id, _, _ in rows)
            seen |= {text for _, text, _ in rows}
        for public_id in seen:
            same = select(organisations.c.id).where(as_text(organisations.c.id) == public_id)
            assert public_id[:4] != "org_" or tx.execute(same).scalar_one() == public_id
    assert seen >= {public_id for prefix in PREFIXES for public_id in bounds(prefix)}


def test_hashes_are_bytes(ledger: Ledger) -> None:
    found = 0
    with ledger.database.read(ALL_TENANTS) as tx:
        for column in _columns(Sha256Hex):
            for digits, stored in tx.execute(select(column, type_coerce(column, LargeBinary))):
                found += 1
                assert (bytes.fromhex(digits), len(stored)) == (bytes(stored), 32)
        known = select(dp_events.c.fingerprint).where(dp_events.c.fingerprint == decisions.c.event_fingerprint)
        assert tx.execute(known).scalars().all() == tx.execute(select(runs.c.event_fingerprint)).scalars().all()
    assert found > 0


def test_text_that_is_no_id_finds_nothing(ledger: Ledger) -> None:
    with ledger.database.read(ALL_TENANTS) as tx:
        for text in ("", "mimic", "run_1", "org_' OR 1 = 1", "RUN_000000000000000", "run_" + "0" * 16):
            assert tx.execute(select(accounts).where(accounts.c.id == text)).all() == []
            assert tx.execute(select(accounts).where(accounts.c.id.in_([text]))).all() == []


def test_memory_of_ids_is_not_filled_by_texts_that_are_none() -> None:
    known = _StoredNumbers()
    assert {known["x" * 100_000], known["run_1"], known["run_" + "0" * 16]} == {NO_NUMBER}
    assert len(known) == 0
    for number in range(known.MOST + 10):
        known[f"run_{number:015x}"]
    assert 0 < len(known) <= known.MOST
    assert (known["run_000000000000001"], known[None]) == (number_of("run_000000000000001"), None)
