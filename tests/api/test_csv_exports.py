"""CSV: what the lists show, in rows that a spreadsheet takes for what they are, at any length."""

import csv
import io
import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from typing import Any

import anyio
import pytest

from app.api import csv_responses
from app.api.csv_responses import ROWS_AT_ONCE, cell_of, csv_response
from app.api.routers.runs import RUNS
from app.ledger.pages import Page, read_pages
from app.ledger.runs.list_filters import RunFilter
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations
from app.service.auth.request_context import cli_context
from tests.api.conftest import SeededLedger
from tests.api.test_lists import FILTERS, Item, runs
from tests.conftest import Ledger

__all__ = ["runs"]


def _rows(ledger: Ledger, path: str, role: str = "viewer") -> list[dict[str, str]]:
    reply = ledger.get(path, role).raise_for_status()
    assert reply.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert reply.headers["Content-Disposition"].startswith('attachment; filename="')
    assert reply.text.endswith("\r\n"), "RFC 4180 ends lines so"
    return list(csv.DictReader(io.StringIO(reply.text, newline="")))


def _cells(item: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: cell_of(item[name]) for name in names}


RUN = ("id", "name", "number", "display_name", "path", "status", "owner", "labels", "epsilon", "attempt", "created_at")


def test_runs_are_those_of_the_list(shared: SeededLedger, runs: list[Item]) -> None:
    assert runs
    for query in ("", *list(FILTERS)[::9], "sort=-updated_at&label=team:icu"):
        listed = shared.ledger.get(f"/v1/runs?limit=200&{query}").json()["items"]
        rows = _rows(shared.ledger, f"/v1/runs.csv?{query}")
        assert [{name: row[name] for name in RUN} for row in rows] == [_cells(item, RUN) for item in listed]
        assert [row["steps"] for row in rows] == [str(item["next_step"]) for item in listed]


def test_decisions_and_audit_events_are_those_of_the_list(shared: SeededLedger) -> None:
    loud = {"count": 1, "event": {"type": "gaussian", "noise_multiplier": 0.5}}
    assert shared.ledger.post(f"/v1/runs/{shared.run}/steps", loud).status_code == 403
    for path, query, role in (
        ("decisions", "", "viewer"),
        ("decisions", "?account=mimic&decision=admitted", "viewer"),
        ("audit-events", "?action=run.*", "auditor"),
        ("audit-events", "?order=oldest", "auditor"),
    ):
        listed = shared.ledger.get(f"/v1/{path}?limit=200{query.replace('?', '&')}", role).json()["items"]
        rows = _rows(shared.ledger, f"/v1/{path}.csv{query}", role)
        assert len(rows) == len(listed) > 0
        for row, item in zip(rows, listed, strict=True):
            shown = {name: item[name] if isinstance(item[name], dict) else cell_of(item[name]) for name in row}
            assert {name: json.loads(cell) if cell[:1] == "{" else cell for name, cell in row.items()} == shown


def test_history_of_a_run_has_every_decision(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_responses, "ROWS_AT_ONCE", 3)
    assert [seeded.steps(first_step=step).status_code for step in range(1, 7)] == [200] * 6
    for path, query in ((f"runs/{seeded.run}", "max_points=500"), (f"accounts/{seeded.population}", "max_points=500")):
        rows = _rows(seeded.ledger, f"/v1/{path}/history.csv")
        points = seeded.ledger.get(f"/v1/{path}/history?{query}").json()["points"]
        same = ("created_at", "epsilon", "used", *(("position", "hash") if path.startswith("runs") else ()))
        assert [_cells(row, same) for row in rows] == [_cells(point, same) for point in points]
    assert "used by mimic/icu-team" in list(rows[0])[-1]


def test_value_that_is_no_text_is_written_as_json_or_left_out() -> None:
    cells: list[tuple[str, object]] = [
        ("-1.5", -1.5),
        ("0", 0),
        ("1e-05", 1e-5),
        ("true", True),
        ("", None),
        ("", {}),
        ('["é"]', ["é"]),
    ]
    assert [cell_of(value) for _, value in cells] == [cell for cell, _ in cells]


def test_no_text_becomes_a_formula() -> None:
    for begin in ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"):
        assert cell_of(f"{begin}cmd|' /C calc'!A0") == f"'{begin}cmd|' /C calc'!A0"
    for begin, split in product(("=", "+", "-", "@", "\uff1d"), (";", "\t", "\n", "\r")):  # where these separate cells
        assert cell_of(f"a{split}{begin}1;b; c") == f"a{split}'{begin}1;b; c"
        assert cell_of({"team": f"a;{begin}1"}) == f'{{"team": "a;\'{begin}1"}}'


def test_formula_of_a_person_is_text_in_a_spreadsheet(shared: SeededLedger) -> None:
    name = '=HYPERLINK("https:","x"),y'
    run = shared.ledger.run(name=name, owner="@SUM(1)", description='-1\n"quoted", é')
    [row] = [row for row in _rows(shared.ledger, "/v1/runs.csv") if row["id"] == run]
    assert (row["name"], row["owner"], row["description"]) == ("'" + name, "'@SUM(1)", '\'-1\n"quoted", é')


def _pages(count: int) -> Iterator[Page[int]]:
    for start in range(0, count, ROWS_AT_ONCE):
        yield Page(range(start, min(start + ROWS_AT_ONCE, count)), str(start) if start + ROWS_AT_ONCE < count else None)


def test_long_list_needs_the_memory_of_a_page() -> None:
    async def peak(count: int) -> int:
        pages = _pages(count)
        rows = ([(number, "x" * 100) for number in page] for page in read_pages(lambda _: next(pages), ROWS_AT_ONCE))
        response = csv_response("numbers", ("number", "text"), rows)
        tracemalloc.start()
        written = 0
        async for part in response.body_iterator:
            written += len(part)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert written > count * 100
        return most

    anyio.run(peak, ROWS_AT_ONCE)  # the first one loads modules
    assert anyio.run(peak, 60 * ROWS_AT_ONCE) < 2 * anyio.run(peak, 2 * ROWS_AT_ONCE) + 200_000


def test_no_transaction_is_open_between_two_pages(
    shared: SeededLedger, runs: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads slowly keeps no snapshot of the database."""
    monkeypatch.setattr(csv_responses, "ROWS_AT_ONCE", 2)
    database, open_transactions = shared.ledger.database, [0]
    with database.read(ALL_TENANTS) as tx:
        organisation = organisations.find_organisation(tx, "hospital")
    assert organisation is not None
    read = Database.read

    @contextmanager
    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401 - as it is called
        with read(*args, **kwargs) as tx:
            open_transactions[0] += 1
            yield tx
        open_transactions[0] -= 1

    monkeypatch.setattr(Database, "read", counted)
    context = cli_context(database, organisation, datetime.now(UTC))

    async def taken() -> list[int]:
        response = RUNS.export(context, RunFilter())
        return [open_transactions[0] async for _ in response.body_iterator]

    found = anyio.run(taken)
    assert len(found) > len(runs) // 2
    assert set(found) == {0}


def test_few_pages_are_read_at_once_and_slow_clients_delay_no_other() -> None:
    busy: list[int] = []
    most: list[int] = []

    def pages() -> Iterator[list[list[str]]]:
        yield [["first"]]
        for _ in range(4):
            busy.append(1)
            most.append(len(busy))
            time.sleep(0.005)
            busy.pop()
            yield [["further"]]

    async def take() -> None:
        text = "".join([str(line) async for line in csv_response("x", ["name"], pages()).body_iterator])
        assert text == "name\r\nfirst\r\n" + 4 * "further\r\n"

    async def main() -> None:
        slow = [csv_response("slow", ["name"], pages()).body_iterator for _ in range(5)]
        assert [await anext(aiter(each)) for each in slow]
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(take)

    anyio.run(main)
    assert len(most) >= 8 * 4
    assert max(most) <= csv_responses.EXPORTERS.total_tokens
