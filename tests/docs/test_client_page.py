"""The examples of the client's reference run as they stand."""

import asyncio
import re
import textwrap
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from epsilon_ledger import (
    AccountLimit,
    AsyncLedgerClient,
    EventCount,
    LedgerClient,
    Limit,
    Run,
    Waiting,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._run import reservation_waits
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT

PAGE: Final = (ROOT / "docs" / "reference" / "client.md").read_text()
BLOCK: Final = re.compile(r"```python\n(.*?)```", re.DOTALL)
WAITS: Final = re.compile(r"^## Wait for a reservation$.*?^(?=## )", re.DOTALL | re.MULTILINE)


def open_accounts(ledger: LedgerClient, population: Limit, budget: Limit) -> None:
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    ledger.create_population("mimic", limit=population, **unit)  # type: ignore[arg-type]
    ledger.create_budget("icu-team", parent="mimic", limit=budget)


def test_examples_of_the_client_run(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("admin", "reference"))
    blocks = BLOCK.findall(WAITS.sub("", PAGE))
    with LedgerClient() as ledger:
        open_accounts(ledger, Limit(3.0, 1e-5), Limit(1.0, 1e-5))
        step = poisson_sampled(0.01, gaussian(1.1))
        active = ledger.create_run("first", budget="mimic/icu-team", event=step)
        known: dict[str, Any] = {"ledger": ledger, "Limit": Limit, "step": step, "AsyncLedgerClient": AsyncLedgerClient}
        for block in (block for block in blocks if not block.startswith("from ")):
            if "await" in block:
                exec(f"async def main():\n{textwrap.indent(block, '    ')}", known)  # noqa: S102
                asyncio.run(known["main"]())
            else:
                exec(block, known)  # noqa: S102
        assert isinstance(known["changed"], AccountLimit)
        assert len(known["decisions"]) == 0
        assert ledger.get_run(known["run"].id).state.labels["reviewed"] == "yes"
        [done] = ledger.list_runs(status="completed")
        assert done.next_step == 1
        exec(blocks[0], {})  # noqa: S102
        assert f"{active.id} first 0.0" in capsys.readouterr().out


def test_examples_of_waits_run(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation_waits, "_FIRST_PAUSE", 0.2)
    step = poisson_sampled(0.01, gaussian(1.1))
    plan = [EventCount(event=step, count=900)]
    with LedgerClient(live_server.url, live_server.key("admin", "clinic")) as ledger:
        open_accounts(ledger, Limit(2.0, 1e-5), Limit(2.0, 1e-5))
        first = ledger.create_run("first", budget="mimic/icu-team", reserve=plan)
        told: list[str] = []

        def end(run: Run, waiting: Waiting) -> None:
            told.append(str(waiting))
            run.complete(0)

        known: dict[str, Any] = {"ledger": ledger, "EventCount": EventCount, "timedelta": timedelta, "step": step}
        known["print"] = lambda waiting: end(first, waiting) if waiting.lacks else None
        reserve, take_up = BLOCK.findall(PAGE)[-2:]
        exec(reserve, known)  # noqa: S102
        second = known["run"]
        assert (second.status, len(told), told[0][:12]) == ("active", 1, "place 1 of 1")
        with live_server.client("admin", "clinic") as office:
            until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            body = {"name": "third", "budget": "mimic/icu-team", "reserve": plan, "wait_until": until}
            known["run_id"] = office.post("/v1/runs", json=body).json()["id"]
        second.complete(0)
        exec(take_up, known)  # noqa: S102
        assert known["run"].status == "active"
