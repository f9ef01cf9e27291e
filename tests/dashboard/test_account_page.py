"""The page of a population or a budget: over time, by whom, and whether another run would fit."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from app.ledger.pages import Page as ListPage
from app.persistence.repositories import overview_queries
from app.persistence.repositories.overview_queries import RunOutline
from tests.api.test_refusals import more_noise
from tests.conftest import SAMPLED, Ledger, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import visit, without_breaks, words
from tests.dashboard.sample_hospital import Hospital
from tests.login_helpers import signed_in


def charts(text: str) -> list[dict[str, Any]]:
    """What a page's script draws."""
    return [json.loads(each) for each in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def a_population(ledger: Ledger) -> tuple[str, str]:
    """A population and its budget, of which some is spent."""
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    budget = str(ledger.budget(limit={"epsilon": 2.0, "delta": 1e-5})["id"])
    run = ledger.run()
    for count in (50, 100, 200):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}, "trainer").is_success
    return population, budget


def test_the_curves_are_those_of_the_api(ledger: Ledger) -> None:
    population, _ = a_population(ledger)
    body = ledger.get(f"/v1/accounts/{population}/history").json()
    over_time, who = charts(visit(ledger, f"/accounts/{population}", signed_in(ledger)).text)
    series = {each["name"]: each for each in over_time["series"]}
    assert [y for _, y in series["Spent"]["points"]] == [point["epsilon"] for point in body["points"]]
    assert {y for _, y in series["Limit"]["points"]} == {8.0}
    assert {y for _, y in series["80\N{NARROW NO-BREAK SPACE}% of the limit"]["points"]} == {6.4}
    assert who["stacked"] is True
    assert who["series"][0]["points"][-1][1] == pytest.approx(100 * body["children"][0]["shares"][-1])


def test_a_change_of_the_limit_is_a_mark_and_a_step(ledger: Ledger) -> None:
    population, _ = a_population(ledger)
    lower = {"limit": {"epsilon": 7.0, "delta": 1e-5}, "reason": "The board has met."}
    assert ledger.post(f"/v1/accounts/{population}/limit", lower, "privacy_officer", If_Match="*").is_success
    body = charts(visit(ledger, f"/accounts/{population}", signed_in(ledger)).text)[0]
    assert [mark["label"] for mark in body["marks"]] == ["limit 8 to 7"]
    [limit] = [each for each in body["series"] if each["role"] == "limit"]
    assert [y for _, y in limit["points"]] == [8.0, 7.0]


def test_a_limit_stands_there_as_it_was_set_and_is_not_rounded(ledger: Ledger) -> None:
    population, _ = a_population(ledger)
    lower = {"limit": {"epsilon": 7.0000004, "delta": 9.9999996e-6}, "reason": "The board has met."}
    assert ledger.post(f"/v1/accounts/{population}/limit", lower, "privacy_officer", If_Match="*").is_success
    raised = {"limit": {"epsilon": 10.0000004, "delta": 1e-5}, "reason": "It is not enough."}
    assert ledger.post(f"/v1/accounts/{population}/limit", raised, "planner", If_Match="*").status_code == 201
    cookie = signed_in(ledger, "privacy_officer")
    for path in (f"/accounts/{population}", "/"):
        body = words(visit(ledger, path, cookie))
        assert "of 7.0000004" in body
        assert "of 7 " not in body
    assert "Epsilon from 7.0000004 to 10.0000004 , delta from 9.9999996e-6 to 1e-5" in words(
        visit(ledger, "/approvals", cookie)
    )
    assert "changed the limit of mimic from epsilon 8 at delta 1e-5 to epsilon 7.0000004" in words(
        visit(ledger, "/audit", cookie)
    )
    chart = charts(visit(ledger, f"/accounts/{population}", cookie).text)[0]
    assert [mark["label"] for mark in chart["marks"]] == ["limit 8 to 7.0000004"]
    assert chart["y"]["label"] == "Epsilon at δ 9.9999996e-6"


@pytest.mark.parametrize(("steps", "noise", "rate"), [(100, 1.1, 0.01), (1_000_000, 1.1, 0.01), (500, 2.0, 1.0)])
def test_what_if_answers_as_the_steps_of_a_run_would_be_answered(
    ledger: Ledger, steps: int, noise: float, rate: float
) -> None:
    _, budget = a_population(ledger)
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    event = {"type": "poisson_sampled", "sampling_probability": rate, "event": gaussian} if rate < 1 else gaussian
    asked = f"/accounts/{budget}?steps={steps}&noise={noise}&rate={rate}"
    body = re.sub(r"(?<=\d) (?=\d)", "", words(visit(ledger, asked, signed_in(ledger))))
    run = ledger.run(name="another", event=event)
    asked_steps = {"count": steps, "event": event}
    answer = ledger.post(f"/v1/runs/{run}/steps?dry_run=true", asked_steps, "trainer")
    assert ("It fits" in body) == answer.is_success
    if answer.is_success:
        assert f"At most {steps + answer.json()['steps_remaining']} such steps fit" in body
    else:
        fitting, least = answer.json()["max_count_that_fits"], more_noise(answer.json())
        assert (f"At most {fitting} such steps fit" if fitting else "No such step fits") in body
        assert least is not None
        assert f"a noise multiplier of {least:g} or more" in body
        assert "blocked by " + answer.json()["binding_account_path"] in body


def test_the_least_noise_of_what_fits_fits_and_a_little_less_does_not(ledger: Ledger) -> None:
    _, budget = a_population(ledger)
    cookie = signed_in(ledger)
    body = words(visit(ledger, f"/accounts/{budget}?steps=100&noise=5&rate=0.01", cookie))
    found = re.search(r"noise multiplier of ([\d.]+) or more", body)
    assert found is not None
    least = float(found[1])
    assert least < 5
    assert "It fits" in words(visit(ledger, f"/accounts/{budget}?steps=100&noise={least}&rate=0.01", cookie))
    assert "It does not" in words(visit(ledger, f"/accounts/{budget}?steps=100&noise={0.99 * least}&rate=0.01", cookie))


def test_what_if_tells_a_scope_no_numbers_of_accounts_between_it_and_the_population(ledger: Ledger) -> None:
    population, team = a_population(ledger)
    inner = str(ledger.budget("sweep", "mimic/icu-team", limit={"epsilon": 1.0, "delta": 1e-5})["id"])
    made = ledger.post("/v1/api-keys", {"role": "viewer", "scope": inner}).json()
    ledger.keys["hospital", "bound"] = made["key"]
    asked = f"/accounts/{inner}?steps=10&noise=1.1&rate=0.01"

    def rows(role: str) -> list[str]:
        page = without_breaks(visit(ledger, asked, signed_in(ledger, role)).text)
        table = page.partition("Remaining budget")[2]
        return re.findall(r'<tr><th scope="row">([^<]+)', table.partition("</table>")[0])

    assert rows("viewer") == ["mimic/icu-team/sweep", "mimic/icu-team", "mimic"]
    assert [ledger.get(f"/v1/budgets/{each}", "bound").status_code for each in (inner, team)] == [200, 403]
    assert ledger.get(f"/v1/budgets/{inner}", "bound").json()["lifetime"]["population"] == population
    assert rows("bound") == ["mimic/icu-team/sweep", "mimic"]


def test_what_if_under_disjoint_parts_tells_of_accounts_that_are_there(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})
    parts: dict[str, Any] = {
        "composition": "parallel",
        "max_partitions_per_unit": 1,
        "attestation": "Each patient is in one ward.",
    }
    wards = str(ledger.budget("wards", limit={"epsilon": 2.0, "delta": 1e-5}, **parts)["id"])
    reply = visit(ledger, f"/accounts/{wards}?steps=10&noise=1.1&rate=0.01", signed_in(ledger))
    assert reply.status_code == 200
    assert "mimic/wards" in words(reply)


def test_the_numbers_of_a_page_agree_though_somebody_charges_meanwhile(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, budget = a_population(ledger)
    [run] = [each["id"] for each in ledger.get("/v1/runs").json()["items"]]
    newest_runs = overview_queries.newest_runs

    def charged(*asked: Any, **more: Any) -> ListPage[RunOutline]:  # noqa: ANN401 - as they come
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 300}, "trainer").is_success
        return newest_runs(*asked, **more)

    monkeypatch.setattr(overview_queries, "newest_runs", charged)
    text = without_breaks(visit(ledger, f"/accounts/{budget}?steps=1", signed_in(ledger)).text)
    spent = re.search(r"<dt>Spent</dt><dd>([\d.]+) of", text)
    spent_now = re.search(r'<th scope="row">mimic/icu-team</th><td class="number">([\d.]+)<', text)
    assert spent is not None
    assert spent_now is not None
    assert spent_now[1] == spent[1]


def test_under_replace_one_the_page_opens_and_says_of_what_nothing_is_proven(ledger: Ledger) -> None:
    population = str(ledger.population(neighboring_relation="replace_one", limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    cookie = signed_in(ledger)
    body = words(visit(ledger, f"/accounts/{population}", cookie))
    assert "No known bound for this run" in body
    assert "under “replace one”" in body
    assert "It fits" in words(visit(ledger, f"/accounts/{population}?steps=10&noise=50&rate=1", cookie))


def test_what_if_records_nothing(ledger: Ledger) -> None:
    population, budget = a_population(ledger)
    before = ledger.get(f"/v1/populations/{population}").headers["etag"]
    visit(ledger, f"/accounts/{budget}?steps=10&noise=1&rate=0.01", signed_in(ledger))
    assert ledger.get(f"/v1/populations/{population}").headers["etag"] == before
    assert len(ledger.get("/v1/runs").json()["items"]) == 1


def test_what_is_no_number_is_told_at_its_field(ledger: Ledger) -> None:
    _, budget = a_population(ledger)
    reply = visit(ledger, f"/accounts/{budget}?steps=many&noise=0&rate=0.01", signed_in(ledger))
    assert reply.status_code == 200
    assert "write a whole number" in words(reply)
    assert reply.text.count('aria-invalid="true"') == 2
    assert "Enter the run's steps, noise and sampling." in words(reply)


def test_what_is_held_stands_beside_what_is_spent(ledger: Ledger) -> None:
    population, _ = a_population(ledger)
    run = ledger.run(name="holding")
    plan = {"plan": [{"event": SAMPLED, "count": 500}], "lease_seconds": 3600}
    assert ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").status_code == 201
    body = words(visit(ledger, f"/accounts/{population}", signed_in(ledger)))
    assert "by reservations;" in body


def test_a_loss_without_bound_is_told_beside_what_is_held(ledger: Ledger) -> None:
    population, budget = a_population(ledger)
    plan = {"plan": [{"event": SAMPLED, "count": 50}], "lease_seconds": 3600}
    assert ledger.post(f"/v1/runs/{ledger.run(name='holding')}/reservations", plan, "trainer").status_code == 201
    happened = {"count": 1000, "mode": "report", "event": {"type": "gaussian", "noise_multiplier": 0.001}}
    reported = ledger.post(f"/v1/runs/{ledger.run(name='leaking')}/steps", happened, "trainer")
    assert reported.json()["epsilon"] == "Infinity"
    for path in ("/", f"/accounts/{population}", f"/accounts/{budget}"):
        reply = visit(ledger, path, signed_in(ledger))
        assert reply.status_code == 200, path
        assert re.search("∞ of 2.* over the limit", words(reply)), path
    alerts = visit(ledger, "/alerts", signed_in(ledger, "admin"))
    assert alerts.status_code == 200
    assert "overdrawn" in alerts.text
    assert "∞ of 2" in words(alerts)


def test_what_lies_under_tells_what_the_overview_tells(
    hospital: Hospital, server: LiveServer, page: Page, sign_in: SignIn
) -> None:
    sign_in(page, server, "viewer")
    body = []
    for path in ("/", f"/accounts/{hospital.ids['mimic']}"):
        page.goto(f"{server.url}{path}")
        teams = page.locator(".tree .account-status")
        body.append([teams.filter(has_text=name).first.inner_text() for name in ("icu-team", "readmission")])
    icu, readmission = body[1]
    assert "% a day" in icu
    assert "reserved" in readmission
    overview, population = (re.sub(r"\d+ \w+ left", "", str(rows)) for rows in body)
    assert population == overview


def test_runs_are_paged(ledger: Ledger) -> None:
    _, budget = a_population(ledger)
    for number in range(26):
        ledger.run(name=f"run-{number}")
    cookie = signed_in(ledger)
    first = visit(ledger, f"/accounts/{budget}", cookie)
    assert "run-25" in first.text
    assert ">model<" not in first.text.split('id="runs-title"')[1].split("refused-title")[0]
    older = re.search(r'href="([^"]+)#runs-title"', first.text)
    assert older is not None
    assert ">model<" in visit(ledger, older[1], cookie).text.split('id="runs-title"')[1].split("refused-title")[0]


def test_runs_of_one_name_are_told_apart_by_their_numbers(ledger: Ledger) -> None:
    _, budget = a_population(ledger)
    runs = [ledger.run(name=name, event=SAMPLED) for name in ("alone", "twin", "twin")]
    for run in runs:
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").is_success
    page = visit(ledger, f"/accounts/{budget}", signed_in(ledger))
    table = page.text.split('id="runs-title"')[1].split("refused-title")[0]
    numbers = [re.findall(r"#\d+", table.split(f'/runs/{run}"')[1].partition("</tr>")[0]) for run in runs]
    assert numbers == [[], [], ["#2"]]
    assert {"alone", "twin", "twin #2"} <= {series["name"] for series in charts(page.text)[1]["series"]}
    assert "twin #2" in words(visit(ledger, f"/runs/{runs[2]}", signed_in(ledger)))


def test_an_account_of_others_is_not_there_and_neither_is_a_run(ledger: Ledger) -> None:
    population, _ = a_population(ledger)
    assert visit(ledger, f"/accounts/{population}", signed_in(ledger, "admin", "clinic")).status_code == 404
    run = ledger.get("/v1/runs").json()["items"][0]["id"]
    assert visit(ledger, f"/accounts/{run}", signed_in(ledger)).status_code == 404


def test_a_person_asks_while_writing_and_shares_the_address(
    hospital: Hospital, server: LiveServer, page: Page, sign_in: SignIn
) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/accounts/{hospital.ids['stroke-registry/outcome-models']}")
    expect(page.locator("#curve canvas")).to_have_attribute("data-drawn", re.compile(r"^[1-9]\d+$"))
    expect(page.locator("#answer")).to_contain_text("It does not fit")
    page.get_by_label("Steps", exact=True).fill("1")
    page.get_by_label("Sampling probability").fill("0.0001")
    expect(page.locator("#answer")).to_contain_text("It fits")
    expect(page).to_have_url(re.compile(r"steps=1&noise=1\.1&rate=0\.0001"))
    steps = page.get_by_label("Steps", exact=True)
    expect(steps).to_have_attribute("aria-invalid", "false")
    expect(steps).to_have_css("border-top-width", "1px")
    steps.fill("0")
    expect(steps).to_have_css("border-top-width", "2px")
    steps.fill("1")
    expect(page).to_have_url(re.compile(r"steps=1&"))
    page.reload()
    expect(page.locator("#answer")).to_contain_text("It fits")


def test_the_box_works_without_script(hospital: Hospital, server: LiveServer, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/sign-in?next=/accounts/{hospital.ids['imaging']}")
    page.get_by_label("API key").fill(server.key("viewer"))
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Steps", exact=True).fill("100000000")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#answer")).to_contain_text("It does not fit")
    context.close()
