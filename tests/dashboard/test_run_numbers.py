"""Two runs of one name are told apart wherever a run is named: on pages, in statements, alerts, messages and CSV."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

from app.ledger.accounts.alerts import Alert, AlertType
from app.service.alerts.messages import message_of
from tests.conftest import Ledger
from tests.dashboard.page_visitor import visitor

PATH = "mimic/icu-team/model"


def two_runs(ledger: Ledger) -> tuple[str, str, str]:
    """A budget with two runs of one name, of which the second one has a limit of its own, and was refused."""
    ledger.population()
    budget = str(ledger.budget(limit={"epsilon": 2.5, "delta": 1e-5})["id"])
    first, second = ledger.run(), ledger.run(limit={"epsilon": 1.0, "delta": 1e-5})
    for run, count in ((first, 20), (second, 30), (second, 10**6)):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}).status_code == (200 if count < 100 else 403)
    return budget, first, second


FURNISHED = {"ledger": two_runs}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def alert(kind: AlertType, facts: dict[str, Any]) -> Alert:
    return Alert("evt_1", kind, facts["account"], "once", facts, datetime(2026, 11, 25, tzinfo=UTC))


def test_pages_and_files_show_the_number_of_the_second_run(ledger: Ledger, made: tuple[str, str, str]) -> None:
    budget, first, second = made
    admin, team = visitor(ledger, "admin"), PATH.rpartition("/")[0]
    position = ledger.get(f"/v1/decisions?run={second}").json()["items"][0]["position"]
    assert ledger.set_limit(second, 1.1, "planner").status_code == 201
    for page, named in {
        "/": f"model #2 {team}",
        "/runs": f"model #2 {team}",
        f"/accounts/{budget}": "model #2 run",
        "/decisions": f"{PATH} #2 has used",
        f"/decisions/{second}/{position}": f"Decision {position} of {PATH} #2",
        f"/runs/{second}": f"{PATH} #2 has used",
        "/audit": f"registered the run {PATH} #2",
        "/approvals": f"limit {PATH} #2",
    }.items():
        assert named in admin.open(page).words, page
    assert "#2" not in admin.open(f"/runs/{first}").words
    assert f"registered the run {PATH} " in admin.open("/audit").words
    assert "model #2" in {each["name"] for each in admin.open(f"/accounts/{budget}").charts()[2]["series"]}
    assert f"{PATH} #2" in ledger.get(f"/v1/runs/{second}/history.svg").text
    for run, number in ((first, 1), (second, 2)):
        assert ledger.get(f"/v1/runs/{run}/statement").json()["payload"]["run"]["number"] == number
        found = rows(ledger.get(f"/v1/runs/{run}/history.csv").text)
        assert {row["run_number"] for row in found} == {str(number)}
    assert f"a run: {PATH} #2<" in ledger.get(f"/v1/runs/{second}/statement.html").text
    population = ledger.get("/v1/populations").json()["items"][0]["id"]
    statement = ledger.get(f"/v1/populations/{population}/statement").json()["payload"]
    assert {each["id"]: each["number"] for each in statement["runs"]} == {first: 1, second: 2}
    numbers = {(first, "1"), (second, "2")}
    assert {(row["run"], row["run_number"]) for row in rows(ledger.get("/v1/decisions.csv").text)} == numbers
    assert {(row["id"], row["number"]) for row in rows(ledger.get("/v1/runs.csv").text)} == numbers
    assert f"used by {PATH} #2" in ledger.get(f"/v1/accounts/{budget}/history.csv").text.splitlines()[0]


def test_alerts_and_messages_have_the_number_of_a_run(ledger: Ledger, made: tuple[str, str, str]) -> None:
    budget, _, second = made
    assert ledger.post(f"/v1/runs/{second}/steps", {"count": 1500, "mode": "report"}).status_code == 200
    found = [(each["type"], each["data"]) for each in ledger.get("/v1/alerts").json()["items"]]
    assert {facts["account_number"] for _, facts in found if facts["account"] == second} == {2}
    assert all("account_number" not in facts for _, facts in found if facts["account"] == budget)
    assert f"{PATH} #2" in visitor(ledger, "admin").open("/alerts").words
    [overdrawn] = [facts for kind, facts in found if kind == "run.overdrawn"]
    message = message_of(alert(AlertType.OVERDRAWN, overdrawn))
    assert message.subject == f"{PATH} #2 went over a limit"
    assert f"The run {PATH} #2 reported steps" in message.text
    assert f"do not fit {PATH} #2." in message.text
    facts: dict[str, Any] = {"account": "bud_1", "account_path": "mimic", "account_kind": "budget"}
    facts |= {"used": 1.0, "limit": {"epsilon": 1.0, "delta": 1e-5}}
    message = message_of(
        alert(AlertType.EXHAUSTED, facts | {"run": "run_1", "run_path": "mimic/model", "run_number": 2})
    )
    assert message.subject == "mimic is used up"
    assert "The last charge of the run mimic/model #2 left no room" in message.text
