"""A change by hand of each type of cell is found on PostgreSQL, too."""

import re
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from app.service.verification.verify import verify
from tests.conftest import Ledger
from tests.service.full_ledger import fill
from tests.service.tampering import account, tampering
from tests.service.test_changed_cells import KNOWN_BY, TABLES

ON_POSTGRESQL: list[tuple[str, str, object]] = [
    ("account_metadata", "archived_at", None),
    ("api_keys", "single_use", True),
    ("attempts", "first_step", 7),
    ("checkpoints", "audit_head", b"x" * 32),
    ("data_blocks", "data_from", datetime(2026, 1, 1, tzinfo=UTC)),
    ("experiments", "account_id", None),
    ("populations", "size", 7),
    ("proposals", "payload", "{"),
    ("receivers", "url", "https://other.example/"),
    ("runs", "declared_steps_per_hour", 1.5),
    ("sessions", "expires_at", datetime(2999, 1, 1, tzinfo=UTC)),
]
"""A cell of each type, which is what the databases differ in."""

FURNISHED = {"ledger": fill}


@pytest.mark.postgresql
def test_changed_cell_of_each_type_is_found_on_postgresql(ledger: Ledger) -> None:
    with tampering(ledger.database) as tx:
        for table, column, value in ON_POSTGRESQL:
            key = account(tx, "mimic/icu-team").id if column == "account_id" else value
            tx.execute(update(TABLES[table]).values({column: key}))
    problems = verify(ledger.database).problems
    missed = {table for table, *_ in ON_POSTGRESQL if not any(re.search(KNOWN_BY[table], each) for each in problems)}
    assert missed == set()
