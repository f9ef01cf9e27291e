"""Two runs of one name are told apart wherever a run is named: on pages, in statements, alerts, messages and CSV."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

from app.ledger.alerts import Alert, AlertType
from app.service.alerts.messages import message_of
from tests.conftest import Ledger
from tests.dashboard.page_visitor import visitor

PATH = "mimic/icu-team/model"
LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def _two_runs(ledger: Ledger) -> tuple[str, str, str]:
    """A budget with two runs of one name, of which the second one has a limit of its own, and was refused."""
    ledger.population()
    budget = str(ledger.budget(limit={"epsilon": 2.5, "delta": 1e-5})["id"])
    first, second = ledger.run(), ledger.run(limit=LIMIT)
    assert ledger.post(f"/v1/runs/{first}/steps", {"count": 20}).status_code == 200
    assert ledger.post(f"/v1/runs/{second}/steps", {"count": 30}).status_code == 200
    assert ledger.post(f"/v1/runs/{second}/steps", {"count": 10**6}).status_code == 403
    return budget, first, second


def test_pages_show_the_number_of_the_second_run(ledger: Ledger) -> None:
    budget, first, second = _two_runs(ledger)
    admin = visitor(ledger, "admin")
    position = ledger.get(f"/v1/decisions?run={second}").json()["items"][0]["position"]
    raised = {"limit": {"epsilon": 1.1, "delta": 1e-5}, "reason": "A bit more."}
    assert ledger.post(f"/v1/accounts/{second}/limit", raised, "planner", If_Match="*").status_code == 201
    expected = {
        "/": f"model #2 {PATH.rpartition('/')[0]}",
        "/runs": f"model #2 {PATH.rpartition('/')[0]}",
        f"/accounts/{budget}": "model #2 run",
        "/decisions": f"{PATH} #2 has spent epsilon",
        f"/decisions/{second}/{position}": f"Decision {position} of {PATH} #2",
        f"/runs/{second}": f"{PATH} #2 has spent epsilon",
        "/audit": f"registered the run {PATH} #2",
        "/approvals": f"limit {PATH} #2",
    }
    for page, named in expected.items():
        assert named in admin.open(page).words, page
    assert "#2" not in admin.open(f"/runs/{first}").words
    assert f"registered the run {PATH} " in admin.open("/audit").words
    assert "model #2" in {each["name"] for each in admin.open(f"/accounts/{budget}").charts()[1]["series"]}
    assert f"{PATH} #2" in ledger.get(f"/v1/runs/{second}/history.svg").text


def test_statements_and_csv_have_the_number_of_a_run(ledger: Ledger) -> None:
    budget, first, second = _two_runs(ledger)
    for run, number in ((first, 1), (second, 2)):
        assert ledger.get(f"/v1/runs/{run}/statement").json()["payload"]["run"]["number"] == number
        rows = list(csv.DictReader(io.StringIO(ledger.get(f"/v1/runs/{run}/history.csv").text)))
        assert {row["run_number"] for row in rows} == {str(number)}
    assert f"a model: {PATH} #2<" in ledger.get(f"/v1/runs/{second}/statement.html").text
    population = ledger.get("/v1/populations").json()["items"][0]["id"]
    statement = ledger.get(f"/v1/populations/{population}/statement").json()["payload"]
    assert {each["id"]: each["number"] for each in statement["runs"]} == {first: 1, second: 2}
    rows = list(csv.DictReader(io.StringIO(ledger.get("/v1/decisions.csv").text)))
    assert {(row["run"], row["run_number"]) for row in rows} == {(first, "1"), (second, "2")}
    rows = list(csv.DictReader(io.StringIO(ledger.get("/v1/runs.csv").text)))
    assert {(row["id"], row["number"]) for row in rows} == {(first, "1"), (second, "2")}
    history = ledger.get(f"/v1/accounts/{budget}/history.csv").text
    assert f"share of {PATH} #2" in history.splitlines()[0]


def test_alerts_and_messages_have_the_number_of_a_run(ledger: Ledger) -> None:
    budget, _, second = _two_runs(ledger)
    assert ledger.post(f"/v1/runs/{second}/steps", {"count": 1500, "mode": "report"}).status_code == 200
    found = ledger.get("/v1/alerts").json()["items"]
    numbers = {
        (each["type"], each["data"].get("account_number")) for each in found if each["data"]["account"] == second
    }
    assert ("run.overdrawn", 2) in numbers
    assert {number for _, number in numbers} == {2}
    assert all("account_number" not in each["data"] for each in found if each["data"]["account"] == budget)
    assert f"{PATH} #2" in visitor(ledger, "admin").open("/alerts").words
    [overdrawn] = [each for each in found if each["type"] == "run.overdrawn"]
    message = message_of(_alert(AlertType.OVERDRAWN, overdrawn["data"]))
    assert message.subject == f"{PATH} #2 went over a limit"
    assert f"The run {PATH} #2 reported steps" in message.text
    assert f"do not fit {PATH} #2." in message.text


def test_message_about_exhausted_budget_names_the_second_run() -> None:
    budget = {"account": "bud_1", "account_path": "mimic", "account_kind": "budget"}
    spending = {"epsilon": 1.0, "epsilon_limit": 1.0, "delta": 1e-5}
    run = {"run": "run_1", "run_path": "mimic/model", "run_number": 2}
    message = message_of(_alert(AlertType.EXHAUSTED, budget | spending | run))
    assert message.subject == "mimic is used up"
    assert "The last charge of the run mimic/model #2 left no room" in message.text


def _alert(kind: AlertType, facts: dict[str, Any]) -> Alert:
    return Alert("evt_1", kind, facts["account"], "once", facts, datetime(2026, 11, 25, tzinfo=UTC))
