"""An entry of a chain is found by its position, and the others are not read."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from sqlalchemy import text

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import periodic_queries, proposals, runs, usage_history
from tests.conftest import Ledger, open_ledger
from tests.persistence.query_plans import Ask, plans

DECISIONS = 200
"""So many that PostgreSQL's choice of an index counts."""
LIMIT = {"epsilon": 100.0, "delta": 1e-5}
POPULATION = "pop_000000000000001"
RUN = "run_000000000000001"
NOW = datetime(2026, 11, 22, tzinfo=UTC)

ONE_ENTRY: dict[str, Ask] = {
    "runs": lambda tx, organisation: runs.get_many(tx, organisation, [RUN]),
    "unapproved runs": lambda tx, organisation: proposals.find_unapproved(tx, organisation, POPULATION),
    "silent runs": lambda tx, _: periodic_queries.silent_runs(tx, NOW, 10),
    "heads": lambda tx, _: periodic_queries.heads(tx),
    "unsigned entries": lambda tx, _: periodic_queries.signing(tx),
    "sampled decisions": lambda tx, organisation: usage_history.sample_decisions(tx, organisation, POPULATION, 10),
    "sampled events": lambda tx, organisation: usage_history.events_of(tx, organisation, POPULATION, 10, 10),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Ledger]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), module_database_url) as ledger:
        ledger.population(limit=LIMIT)
        ledger.budget(limit=LIMIT)
        run = ledger.run()
        for _ in range(DECISIONS):
            assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        if ledger.database.dialect == "postgresql":
            with ledger.database.write(ALL_TENANTS) as tx:
                tx.execute(text("ANALYZE decisions, audit_entries"))
        yield ledger


@pytest.mark.parametrize("what", ONE_ENTRY)
def test_an_entry_is_found_by_its_position(opened: Ledger, what: str) -> None:
    """With row-level security, PostgreSQL searches for no position that it must compute meanwhile."""
    lines = "\n".join(plans(opened, ONE_ENTRY[what])).splitlines()
    chains = r"\b(decisions|audit_entries)(_\d)?\b"
    if opened.database.dialect == "sqlite":
        read = [line for line in lines if re.match(rf"(SEARCH|SCAN) {chains}", line)]
    else:
        read = [after for line, after in pairwise(lines) if re.search(rf"Scan .*on {chains}", line)]
    assert read, "\n".join(lines)
    assert all(re.search(r"\bposition\"? ?[<=]", line) for line in read), "\n".join(lines)
