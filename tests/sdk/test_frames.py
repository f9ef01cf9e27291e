"""Data frames: a row for each item, a column for each field, whatever is missing in it."""

import asyncio
import sys
import uuid
from datetime import UTC, datetime

import pandas as pd
import pytest

from epsilon_ledger import LedgerClient, Limit, Link, Population, gaussian, poisson_sampled
from epsilon_ledger._wire.frames import data_frame
from tests.sdk.simulation import Wire

STEP = poisson_sampled(0.01, gaussian(1.1))


def population(**changed: object) -> Population:
    terms: dict[str, object] = {
        "id": "pop_1",
        "name": "mimic",
        "path": "mimic",
        "privacy_unit": "patient",
        "neighboring_relation": "replace_one",
        "size": None,
        "limit": Limit(3.0, 1e-5),
        "planned": (),
        "epsilon": 0.5,
        "epsilon_rdp": 0.4,
        "weights_frozen": True,
        "created_at": datetime(2026, 11, 21, 8, tzinfo=UTC),
        "updated_at": datetime(2026, 11, 21, 9, tzinfo=UTC),
    }
    return Population(**(terms | changed))  # type: ignore[arg-type] # mypy does not see the types in the dict


def test_fields_of_fields_are_columns_and_timestamps_are_times() -> None:
    linked = population(links=(Link("Study", "https://study.example"),), archived_at=datetime(2027, 1, 1, tzinfo=UTC))
    frame = data_frame([population(), linked], Population)
    assert list(frame.columns[:3]) == ["id", "name", "path"]
    assert list(frame["limit.epsilon"]) == [3.0, 3.0]
    assert (frame["epsilon"].dtype, frame["weights_frozen"].dtype) == (float, bool)
    assert str(frame["created_at"].dtype).endswith("UTC]")
    assert frame["created_at"][0] == pd.Timestamp("2026-11-21T08:00:00Z")
    assert frame["archived_at"].isna().tolist() == [True, False]
    assert frame["plan.steps"].isna().all()
    assert frame["links"][1] == linked.links
    assert "limit" not in frame


def test_lists_and_histories_become_frames(wire: Wire, admin: LedgerClient, trainer: LedgerClient) -> None:
    name = f"mimic-{uuid.uuid4().hex[:8]}"
    admin.create_population(
        name, privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=Limit(3.0, 1e-5)
    )
    budget = admin.create_budget("icu-team", parent=name, limit=Limit(1.0, 1e-5)).path
    run = trainer.create_run("model", budget=budget, event=STEP)
    spent = [run.authorize().epsilon for _ in range(3)]
    decisions = trainer.list_decisions(run=run.id, page_size=2).to_pandas()
    assert decisions["epsilon"].tolist() == spent[::-1]
    assert decisions["created_at"].is_monotonic_decreasing
    history = trainer.get_run_history(run.id).to_pandas()
    assert (history["epsilon"].tolist(), history["next_step"].tolist()) == (spent, [1, 2, 3])
    assert admin.get_account_history(budget).to_pandas()["epsilon"].iloc[-1] == admin.get_budget(budget).epsilon
    events = admin.list_audit_events(subject=run.state.budget).to_pandas()
    assert events["action"].tolist() == ["budget.created"]
    runs = trainer.list_runs(budget=budget)
    assert next(runs).id == run.id
    assert len(runs.to_pandas()) == 0

    async def main() -> None:
        async with wire.async_client("trainer") as ledger:
            assert (await ledger.list_decisions(run=run.id, page_size=2).to_pandas()).equals(decisions)

    asyncio.run(main())


def test_error_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install \"epsilon-ledger-client\[pandas\]\""):
        data_frame([], Population)
