"""How the databases find what is asked for often: by a range of an index, and without sorting what is not on a page."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import Any

import pytest
from sqlalchemy import Connection, event, select, text

from app.ledger.audit import AuditFilter
from app.ledger.pages import PageRequest
from app.ledger.runs.decisions import DecisionCursor, DecisionFilter, DecisionOutcome
from app.persistence import tables
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import (
    accounts,
    alerts,
    audit,
    decision_lists,
    decisions,
    idempotent_responses,
    periodic_queries,
    proposals,
    runs,
    usage_history,
)
from tests.conftest import Ledger, open_ledger

pytestmark = pytest.mark.both_databases

Ask = Callable[[Connection, str], object]

BY_TIME, NOT_ADMITTED = "ix_decisions_organisation_id_created_at", "ix_decisions_not_admitted"
RUNS = "run_000000000000001", "run_000000000000002"
POPULATION = "pop_000000000000001"
PLACE = DecisionCursor(datetime(2026, 11, 22, tzinfo=UTC), RUNS[0], 5)


DECISIONS = {"sqlite": 3, "postgresql": 200}
"""So many that PostgreSQL's choice of an index counts."""

LIMIT = {"epsilon": 100.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Ledger]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), module_database_url) as ledger:
        ledger.population(limit=LIMIT)
        ledger.budget(limit=LIMIT)
        run = ledger.run()
        for _ in range(DECISIONS[ledger.database.dialect]):
            assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        if ledger.database.dialect == "postgresql":
            with ledger.database.write(ALL_TENANTS) as tx:
                # Of indexes that cost the same it takes any, and it guesses that an organisation has few of the rows.
                tx.execute(text("ANALYZE accounts, decisions, audit_entries"))
        yield ledger


def _plans(ledger: Ledger, ask: Ask, *, bitmaps: bool = False) -> list[str]:
    """How each statement finds rows; what PostgreSQL may do with small tables only is forbidden it.

    With `bitmaps` it may combine several searches of indexes, as it must for rows of several keys.
    """
    asked: list[tuple[str, Any]] = []

    with ledger.database.read(ALL_TENANTS) as tx:
        organisation = tx.execute(select(tables.runs.c.organisation_id)).scalar_one()
    with ledger.database.read(organisation) as tx:
        event.listen(tx, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
        ask(tx, organisation)
        statements = list(asked)
        if tx.dialect.name == "postgresql":
            forbidden = ["seqscan", "hashjoin", "mergejoin", "sort", *([] if bitmaps else ["bitmapscan"])]
            for way in forbidden:
                tx.execute(text(f"SET LOCAL enable_{way} = off"))
        explain = "EXPLAIN QUERY PLAN" if tx.dialect.name == "sqlite" else "EXPLAIN (COSTS OFF)"
        found = [tx.exec_driver_sql(f"{explain} {statement}", parameters).all() for statement, parameters in statements]
    return ["\n".join(str(row[-1]) for row in rows) for rows in found]


def _plan(ledger: Ledger, ask: Ask) -> str:
    """How something is found, by its first statement."""
    return _plans(ledger, ask)[0]


SOME_ROWS: dict[str, tuple[Ask, str]] = {
    "ix_deliveries_pending": (lambda tx, _: alerts.organisations_due(tx, PLACE.created_at, []), "deliveries"),
    "uq_accounts_path": (lambda tx, owner: accounts.find_by_path(tx, owner, "mimic/icu-team"), "accounts"),
    "uq_reservations_active": (lambda tx, _: periodic_queries.lapsed(tx, PLACE.created_at, 10), "reservations"),
}


def test_partial_index_is_taken_for_its_rows(opened: Ledger) -> None:
    for index, (ask, table) in SOME_ROWS.items():
        [plan] = [each for each in _plans(opened, ask, bitmaps=True) if re.search(rf"\b{table}\b", each)]
        one_search = rf"{table} USING (COVERING )?INDEX {index}\b|using {index} on {table}\b"
        assert re.search(rf"{one_search}|Bitmap Index Scan on {index}\b", plan), plan


def test_admitted_step_is_searched_by_positions_of_its_run(opened: Ledger) -> None:
    plan = _plan(opened, lambda tx, owner: decisions.find_admitted(tx, owner, RUNS[0], 1, 5))
    if opened.database.dialect == "postgresql":
        searches = [line for line in plan.splitlines() if re.search(r"\bon decisions\b", line)]
        assert all("Index Scan using pk_decisions on decisions" in line for line in searches), plan
    else:
        searches = [line for line in plan.splitlines() if re.match(r"(SEARCH|SCAN) (decisions|probe)\b", line)]
        place = "USING INDEX sqlite_autoindex_decisions_1 (organisation_id=? AND run_id=? AND position=?)"
        assert all(line.endswith(place) for line in searches), plan
    assert len(searches) == 2, plan


PARTLY_SORTED = r"USE TEMP B-TREE FOR (RIGHT PART|LAST TERM|LAST \d TERMS) OF ORDER BY"
"""As versions of SQLite call it."""

WANTED = {
    "everything": (DecisionFilter(), BY_TIME),
    "under": (DecisionFilter(within=POPULATION), BY_TIME),
    "actor": (DecisionFilter(actor="key_1"), BY_TIME),
    "admitted": (DecisionFilter(outcome=DecisionOutcome.ADMITTED), BY_TIME),
    "within a time": (DecisionFilter(since=PLACE.created_at, until=PLACE.created_at), BY_TIME),
    "refused": (DecisionFilter(outcome=DecisionOutcome.REFUSED), NOT_ADMITTED),
    "reported under": (DecisionFilter(outcome=DecisionOutcome.REPORTED, within=POPULATION), NOT_ADMITTED),
    "refused of a run": (DecisionFilter(outcome=DecisionOutcome.REFUSED, run_id=RUNS[0]), NOT_ADMITTED),
    "refused since": (DecisionFilter(outcome=DecisionOutcome.REFUSED, since=PLACE.created_at), NOT_ADMITTED),
}


@pytest.mark.parametrize("query", WANTED)
def test_page_of_decisions_is_a_range_of_an_index(opened: Ledger, query: str) -> None:
    wanted, index = WANTED[query]
    for request in (PageRequest(50, None), PageRequest(50, str(PLACE))):
        plan = _plan(opened, lambda tx, owner, request=request: decisions.page(tx, owner, wanted, request))  # type: ignore[misc]
        if opened.database.dialect == "postgresql":
            assert f"Index Scan Backward using {index} on decisions" in plan, plan
            sorts = {line.strip() for line in plan[plan.index("Limit") :].splitlines() if line.endswith("Sort")}
            assert sorts <= {"->  Incremental Sort"}, plan
            continue
        lines = plan.splitlines()
        page = lines[: lines.index("SCAN anon_1")]
        [search, *recent] = [line for line in page if line.split()[1] == "decisions"]
        assert search.startswith(f"SEARCH decisions USING INDEX {index} (organisation_id=?"), plan
        assert all(line.startswith(f"SEARCH decisions USING COVERING INDEX {BY_TIME} (") for line in recent), plan
        assert all(re.fullmatch(PARTLY_SORTED, line) for line in page if "TEMP B-TREE" in line), plan


RARE = {
    "a run": DecisionFilter(run_id=RUNS[0]),
    "admitted of a run": DecisionFilter(run_id=RUNS[0], outcome=DecisionOutcome.ADMITTED, within=POPULATION),
    "under": DecisionFilter(within=POPULATION),
    "actor": DecisionFilter(actor="key_1"),
    "actor within a time": DecisionFilter(actor="key_1", since=PLACE.created_at, until=PLACE.created_at),
}


@pytest.mark.parametrize("query", RARE)
def test_rare_decisions_are_searched_by_positions_of_runs(opened: Ledger, query: str) -> None:
    """PostgreSQL chooses by the sizes of tables: `python -m benchmarks.decision_lists --postgresql` has some."""
    for behind in (None, PLACE):

        def ask(tx: Connection, owner: str, behind: DecisionCursor | None = behind) -> None:
            *_, last = decision_lists.searches(owner, RARE[query], behind, 51)
            tx.execute(last.limit(51))

        plan = _plan(opened, ask)
        if opened.database.dialect == "postgresql":
            assert plan.index("CTE found") < plan.index("Sort Key: found.created_at DESC"), plan
            continue
        found = {line for line in plan.splitlines() if re.match(r"(SEARCH|SCAN) (decisions|probe|counted)\b", line)}
        places = (
            r" USING (COVERING )?INDEX sqlite_autoindex_decisions_1 \(organisation_id=\? AND run_id=\? AND position"
        )
        assert all(re.match(rf"SEARCH \w+{places}", line) for line in found), plan
        assert {line.split()[1] for line in found} >= {"decisions", "counted"}, plan


ENTRIES = {"sqlite": "sqlite_autoindex_audit_entries_1", "postgresql": "pk_audit_entries"}
UNDER = {
    "sqlite": "account_ancestors USING COVERING INDEX sqlite_autoindex_account_ancestors_2 (organisation_id=? AND an",
    "postgresql": "Index Only Scan using uq_account_ancestors_organisation_id_ancestor_id_account_id on account_ancest",
}
AUDITED: dict[AuditFilter, str | dict[str, str]] = {
    AuditFilter(within=POPULATION): ENTRIES,
    AuditFilter(within=POPULATION, action="run.created"): "ix_audit_entries_organisation_id_action_position",
    AuditFilter(subject=POPULATION): "ix_audit_entries_organisation_id_subject_position",
}


def test_page_of_audit_events_is_a_range_of_an_index(opened: Ledger) -> None:
    """Subjects are text, and the ids of the accounts under one are not: only these are converted."""
    name = opened.database.dialect
    for (wanted, indexes), before in product(AUDITED.items(), (None, "5")):
        request, index = PageRequest(50, before), indexes if isinstance(indexes, str) else indexes[name]
        plan = _plan(opened, lambda tx, owner, wanted=wanted, to=request: audit.list_entries(tx, owner, wanted, to))  # type: ignore[misc]
        search = {
            "sqlite": f"SEARCH audit_entries USING INDEX {index} (organisation_id=?",
            "postgresql": f"Index Scan Backward using {index} on audit_entries",
        }
        assert search[name] in plan, plan
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan
        assert (UNDER[name] in plan) == (wanted.within is not None), plan


@pytest.mark.postgresql
def test_new_keys_are_looked_up_by_indexes_when_a_plan_is_prepared(opened: Ledger) -> None:
    """It may be prepared while the tables are small, and used when they are large."""
    asked: list[str] = []
    with opened.database.read(ALL_TENANTS) as tx:
        event.listen(tx, "before_cursor_execute", lambda *given: asked.append(given[2]))
        idempotent_responses.require_new(tx, "org_000000000000001", ["a", "b"])
    statement = asked[0].replace("%(number)s", "$1").replace("%(keys)s", "$2")
    with opened.database.read(ALL_TENANTS) as tx:
        for setting in ("plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_bitmapscan = off"):
            tx.execute(text(f"SET LOCAL {setting}"))
        tx.exec_driver_sql(f"PREPARE new_keys (bigint, text[]) AS {statement}")
        rows = tx.exec_driver_sql("EXPLAIN (COSTS OFF) EXECUTE new_keys (1, '{a,b}')").scalars().all()
        tx.exec_driver_sql("DEALLOCATE new_keys")
    for index in ("uq_decisions_idempotency_key", "pk_idempotent_responses"):
        [place] = [place for place, row in enumerate(rows) if f"using {index} " in row]
        assert re.search(r"Index Cond: .*organisation_id = \$1.*idempotency_key.* = asked\w*\.key", rows[place + 1]), (
            rows
        )


ONE_ENTRY: dict[str, Ask] = {
    "runs": lambda tx, organisation: runs.get_many(tx, organisation, [RUNS[0]]),
    "unapproved runs": lambda tx, organisation: proposals.find_unapproved(tx, organisation, POPULATION),
    "silent runs": lambda tx, _: periodic_queries.silent_runs(tx, PLACE.created_at, 10),
    "heads": lambda tx, _: periodic_queries.heads(tx),
    "unsigned entries": lambda tx, _: periodic_queries.signing(tx),
    "sampled decisions": lambda tx, organisation: usage_history.sample_decisions(tx, organisation, POPULATION, 10),
    "sampled events": lambda tx, organisation: usage_history.events_of(tx, organisation, POPULATION, 10, 10),
}


def test_entry_of_a_chain_is_found_by_its_position(opened: Ledger) -> None:
    """With row-level security, PostgreSQL searches for no position that it must compute meanwhile."""
    chains = r"\b(decisions|audit_entries)(_\d)?\b"
    for query, ask in ONE_ENTRY.items():
        lines = "\n".join(_plans(opened, ask)).splitlines()
        if opened.database.dialect == "sqlite":
            read = [line for line in lines if re.match(rf"(SEARCH|SCAN) {chains}", line)]
        else:
            read = [after for line, after in pairwise(lines) if re.search(rf"Scan .*on {chains}", line)]
        assert read, query
        assert all(re.search(r"\bposition\"? ?[<=]", line) for line in read), "\n".join(lines)
