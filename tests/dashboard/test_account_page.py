"""The page of a population or a budget: over time, by whom, and whether another run would fit."""

import re
from typing import Any

import pytest

from app.ledger.pages import Page as ListPage
from app.persistence.repositories import overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from tests.api.test_refusals import more_noise
from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import Page, text_of, visitor, without_breaks

OFFICER = "privacy_officer"


def spent_accounts(ledger: Ledger) -> tuple[str, str]:
    """A population and its budget, of which some is spent; their ids."""
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    budget = str(ledger.budget(limit={"epsilon": 2.0, "delta": 1e-5})["id"])
    run = ledger.run()
    for count in (50, 100, 200):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}, "trainer").is_success
    return population, budget


FURNISHED = {"ledger": spent_accounts}


@pytest.fixture
def population(made: tuple[str, str]) -> str:
    return made[0]


@pytest.fixture
def budget(made: tuple[str, str]) -> str:
    return made[1]


def open_account(ledger: Ledger, account: str, query: str = "", role: str = "viewer") -> Page:
    return visitor(ledger, role).open(f"/accounts/{account}{query}")


def preview(ledger: Ledger, account: str, steps: float, noise: float, rate: float = 0.01) -> str:
    """The words of the page that tells whether another run would fit."""
    words = open_account(ledger, account, f"?steps={steps}&noise={noise}&rate={rate}").words
    return re.sub(r"(?<=\d) (?=\d)", "", words)


def test_curves_are_those_of_api_and_a_changed_limit_is_a_mark_and_a_step(ledger: Ledger, population: str) -> None:
    body = ledger.get(f"/v1/accounts/{population}/history").json()
    over_time, used, shares = open_account(ledger, population).charts()
    series = {each["name"]: each for each in over_time["series"]}
    assert [y for _, y in series["Epsilon"]["points"]] == [point["epsilon"] for point in body["points"]]
    assert {y for _, y in series["Limit"]["points"]} == {8.0}
    series = {each["name"]: [y for _, y in each["points"]] for each in used["series"]}
    assert series["Used"] == pytest.approx([100 * point["used"] for point in body["points"]], abs=1e-5)
    assert (set(series["80\N{NARROW NO-BREAK SPACE}%"]), set(series["Limit"])) == ({80.0}, {100.0})
    assert shares["stacked"] is True
    assert shares["series"][0]["points"][-1][1] == pytest.approx(100 * body["children"][0]["shares"][-1])
    assert ledger.set_limit(population, 7.0, OFFICER).is_success
    chart = open_account(ledger, population).charts()[0]
    assert [mark["label"] for mark in chart["marks"]] == ["limit 8 to 7"]
    [limit] = [each for each in chart["series"] if each["role"] == "limit"]
    assert [y for _, y in limit["points"]] == [8.0, 7.0]


def test_limit_is_shown_as_it_was_set_and_not_rounded(ledger: Ledger, population: str) -> None:
    assert ledger.set_limit(population, 7.0000004, OFFICER, 9.9999996e-6).is_success
    assert ledger.set_limit(population, 10.0000004, "planner").status_code == 201
    officer = visitor(ledger, OFFICER)
    for path, said in ((f"/accounts/{population}", "Limit ε 7.0000004 at"), ("/", "limit 7.0000004 at")):
        assert said in officer.open(path).words
    said = "Epsilon from 7.0000004 to 10.0000004 , delta from 9.9999996e-6 to 1e-5"
    assert said in officer.open("/approvals").words
    said = "changed the limit of mimic from epsilon 8 at delta 1e-5 to epsilon 7.0000004"
    assert said in officer.open("/audit").words
    chart = open_account(ledger, population).charts()[0]
    assert [mark["label"] for mark in chart["marks"]] == ["limit 8 to 7.0000004"]
    assert chart["y"]["label"] == "Epsilon at δ 9.9999996e-6"


@pytest.mark.parametrize(("steps", "noise", "rate"), [(100, 1.1, 0.01), (1_000_000, 1.1, 0.01), (500, 2.0, 1.0)])
def test_preview_answers_as_steps_of_a_run_are_answered(
    ledger: Ledger, budget: str, steps: int, noise: float, rate: float
) -> None:
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    event = {"type": "poisson_sampled", "sampling_probability": rate, "event": gaussian} if rate < 1 else gaussian
    said = preview(ledger, budget, steps, noise, rate)
    run = ledger.run(name="another", event=event)
    answer = ledger.post(f"/v1/runs/{run}/steps?dry_run=true", {"count": steps, "event": event}, "trainer")
    assert ("It fits" in said) == answer.is_success
    if answer.is_success:
        assert f"At most {steps + answer.json()['steps_remaining']} such steps fit" in said
    else:
        fitting, least = answer.json()["max_steps_that_fit"], more_noise(answer.json())
        assert (f"At most {fitting} such steps fit" if fitting else "No such step fits") in said
        assert least is not None
        assert f"a noise multiplier of {least:g} or more" in said
        assert "blocked by " + answer.json()["binding_account_path"] in said
    assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 0


def test_preview_hides_accounts_between_scope_and_population(ledger: Ledger, budget: str) -> None:
    inner = str(ledger.budget("sweep", "mimic/icu-team", limit={"epsilon": 1.0, "delta": 1e-5})["id"])
    made = ledger.post("/v1/api-keys", {"role": "viewer", "scope": inner}).json()
    ledger.keys["hospital", "bound"] = made["key"]

    def rows(role: str) -> list[str]:
        table = open_account(ledger, inner, "?steps=10&noise=1.1&rate=0.01", role).region("Remaining budget")
        return [text_of(each) for each in table.iter("th") if each.get("scope") == "row"]

    assert rows("viewer") == ["mimic/icu-team/sweep", "mimic/icu-team", "mimic"]
    assert [ledger.get(f"/v1/budgets/{each}", "bound").status_code for each in (inner, budget)] == [200, 403]
    assert rows("bound") == ["mimic/icu-team/sweep", "mimic"]


def test_preview_of_another_kind_of_account_names_what_it_lacks(ledger: Ledger) -> None:
    parts: dict[str, Any] = {"composition": "parallel", "attestation": "Each patient is in one ward."}
    wards = str(ledger.budget("wards", max_partitions_per_unit=1, **parts)["id"])
    assert "mimic/wards" in open_account(ledger, wards, "?steps=10&noise=1.1&rate=0.01").words
    replaced = str(ledger.population("other", neighboring_relation="replace_one")["id"])
    assert "Gaussian noise on Poisson samples" in open_account(ledger, replaced).words
    assert "It fits" in preview(ledger, replaced, 10, 50, 1)
    page = open_account(ledger, replaced, "?steps=many&noise=0&rate=0.01")
    assert page.status == 200
    assert "write a whole number" in page.words
    assert page.reply.text.count('aria-invalid="true"') == 2
    assert "Enter the run's steps, noise and sampling." in page.words


def test_numbers_agree_when_run_is_charged_meanwhile(
    ledger: Ledger, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = [each["id"] for each in ledger.get("/v1/runs").json()["items"]]
    newest_runs = overview_queries.newest_runs

    def charged(*asked: Any, **more: Any) -> ListPage[RunOutline]:  # noqa: ANN401 - as they come
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 300}, "trainer").is_success
        return newest_runs(*asked, **more)

    monkeypatch.setattr(overview_queries, "newest_runs", charged)
    text = without_breaks(open_account(ledger, budget, "?steps=1").reply.text)
    used = re.findall(r"<dt>Used</dt><dd>([\d.]+\s%)<small>", text)
    assert used == re.findall(r'<th scope="row">mimic/icu-team</th><td class="number">([^<]+)<', text)
    assert len(used) == 1


def test_enormous_loss_is_shown_beside_reserved(ledger: Ledger, population: str, budget: str) -> None:
    plan = {"events": [{"event": SAMPLED, "count": 50}], "lease_seconds": 3600}
    assert ledger.post(f"/v1/runs/{ledger.run(name='holding')}/reservations", plan, "trainer").status_code == 201
    assert "% with what is used" in open_account(ledger, population).words
    happened = {"count": 1000, "mode": "report", "event": {"type": "gaussian", "noise_multiplier": 0.001}}
    reported = ledger.post(f"/v1/runs/{ledger.run(name='leaking')}/steps", happened, "trainer")
    assert reported.json()["epsilon"] > 1e8
    for path in ("/", f"/accounts/{population}", f"/accounts/{budget}"):
        page = visitor(ledger).open(path)
        assert page.status == 200, path
        assert re.search(r"over 999 %.* over the limit", page.words), path
    alerts = visitor(ledger, "admin").open("/alerts")
    assert "overdrawn" in alerts.words
    assert "over 999 % of ε 2 at δ 1e-5" in alerts.words


def test_runs_of_account_are_paged_and_those_of_one_name_have_numbers(ledger: Ledger, budget: str) -> None:
    [first] = ledger.get("/v1/runs").json()["items"]
    assert open_account(ledger, str(first["id"])).status == 404, "a run is no account"
    runs = [ledger.run(name=name) for name in ("alone", "twin", "twin")]
    for run in runs:
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").is_success
    page = open_account(ledger, budget)
    rows = {a.get("href"): text_of(row) for row in page.get("runs").iter("tr") for a in row.iter("a")}
    assert [re.findall(r"#\d+", rows[f"/runs/{run}"]) for run in runs] == [[], [], ["#2"]]
    assert {"alone", "twin", "twin #2"} <= {series["name"] for series in page.charts()[2]["series"]}
    assert "twin #2" in visitor(ledger).open(f"/runs/{runs[2]}").words
    for number in range(22):
        ledger.run(name=f"run-{number}")
    page = open_account(ledger, budget)
    assert "run-21" in page.part("runs")
    assert " model " not in page.part("runs")
    [older] = [link for link in page.links() if link.endswith("#runs-title")]
    assert "model " in visitor(ledger).open(older).part("runs")
