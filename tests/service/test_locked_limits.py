"""What is locked cannot be taken now, and is not used up: in the API, the forecast and the metrics."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.test_metrics import TOKEN, samples_of
from tests.conftest import Ledger, open_ledger
from tests.waiting_plans import OVER_TEN_DAYS, allocate, ask, preview

LIMIT = {"epsilon": 3.0, "delta": 1e-5}
ALL_UNLOCKED: dict[str, Any] = {"type": "over_time", "over_seconds": 10, "parts": 1}


def available(ledger: Ledger, account: str) -> dict[str, Any]:
    """What an account says that can be taken, and by which account that is limited."""
    kind = "populations" if account.startswith("pop_") else "budgets"
    found: dict[str, Any] = ledger.get(f"/v1/{kind}/{account}").json()["available"]
    return found


def test_what_can_be_taken_leaves_out_what_is_locked(ledger: Ledger) -> None:
    population = str(ledger.population(limit=LIMIT)["id"])
    budget = str(ledger.budget(limit=LIMIT)["id"])
    whole = available(ledger, budget)["epsilon"]
    allocate(ledger, population, unlock=ALL_UNLOCKED)
    assert available(ledger, budget)["epsilon"] == whole
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    assert available(ledger, budget) == available(ledger, population)
    assert available(ledger, budget)["account"] == population
    assert available(ledger, budget)["epsilon"] == pytest.approx(whole / 10)
    for steps in (20, 60):
        before = available(ledger, budget)["epsilon"]
        run = ask(ledger, f"run-{steps}", steps).json()
        assert run["status"] == "active"
        left = available(ledger, budget)["epsilon"]
        assert 0 < left < before
        forecasts = [ledger.get(f"/v1/accounts/{each}/forecast").json() for each in (budget, population)]
        assert [each["available"]["epsilon"] for each in forecasts] == [left, left]


def test_nothing_is_free_where_no_step_fits_any_more(ledger: Ledger) -> None:
    population = str(ledger.population(limit=LIMIT)["id"])
    ledger.budget(limit=LIMIT)
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    most = max(steps for steps in range(1, 400) if preview(ledger, "mimic/icu-team", steps).json()["fits"])
    assert most > 10
    assert ask(ledger, "all", most).json()["status"] == "active"
    assert not preview(ledger, "mimic/icu-team", 1).json()["fits"]
    assert available(ledger, population)["epsilon"] < 0.01


def test_a_part_of_locked_people_loses_nothing_by_what_others_took(ledger: Ledger) -> None:
    parts = {"composition": "parallel", "attestation": "Each patient is in one ward."}
    population = str(ledger.population(limit=LIMIT, **parts)["id"])
    east, west = (str(ledger.budget(name, limit=LIMIT)["id"]) for name in ("east", "west"))
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    first = ask(ledger, "first", 200, budget="mimic/east")
    assert first.json()["status"] == "active", first.text
    left = {each: available(ledger, each)["epsilon"] for each in (population, east, west)}
    assert left[population] == pytest.approx(left[east], abs=1e-6)
    assert left[west] > left[east] + 0.05
    fits = {each: preview(ledger, each, 200).json()["fits"] for each in (east, west)}
    assert fits == {east: False, west: True}


def test_metrics_count_what_waits_and_name_what_is_locked(tmp_path: Path) -> None:
    with open_ledger(tmp_path, metrics_token=TOKEN) as ledger:
        population = str(ledger.population(limit=LIMIT)["id"])
        ledger.budget(limit=LIMIT)
        allocate(ledger, population, unlock=OVER_TEN_DAYS)
        before = _samples(ledger)
        assert before["waiting_plans"] == before["oldest_waiting_plan_age_seconds"] == 0
        ask(ledger, "first", 800)
        ask(ledger, "second", 900)
        assert ask(ledger, "third", 110).json()["status"] == "active"
        found = _samples(ledger)
        assert found["waiting_plans"] == 2
        assert 0 < found["oldest_waiting_plan_age_seconds"] < 60
        assert found["account_unlocked_ratio mimic"] == 0.1
        assert "account_unlocked_ratio mimic/icu-team" not in found
        assert found["account_available_epsilon mimic/icu-team"] == available(ledger, population)["epsilon"] < 0.2
        assert found["accounts_nearly_exhausted budget"] == found["accounts_nearly_exhausted population"] == 0


def _samples(ledger: Ledger) -> dict[str, float]:
    """Samples of the service by the name and what tells them apart."""
    reply = ledger.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    found = {}
    for (name, labels), value in samples_of(reply.text).items():
        said = dict(labels)
        told = said.get("account") or said.get("kind") or ""
        found[f"{name.removeprefix('epsilon_ledger_')} {told}".strip()] = value
    return found
