"""The examples of the client's reference run as they stand."""

import asyncio
import re
import textwrap
from typing import Any

import pytest

from epsilon_ledger import AccountLimit, AsyncLedgerClient, LedgerClient, Limit, gaussian, poisson_sampled
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT


def test_the_examples_run(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("admin"))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "client.md").read_text(), re.DOTALL)
    with LedgerClient() as ledger:
        ledger.create_population(
            "mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=Limit(3.0, 1e-5)
        )
        ledger.create_budget("icu-team", parent="mimic", limit=Limit(1.0, 1e-5))
        step = poisson_sampled(0.01, gaussian(1.1))
        active = ledger.create_run("first", budget="mimic/icu-team", event=step)
        known: dict[str, Any] = {
            "ledger": ledger,
            "Limit": Limit,
            "step": step,
            "AsyncLedgerClient": AsyncLedgerClient,
        }
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
