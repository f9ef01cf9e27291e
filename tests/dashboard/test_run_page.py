"""The page of a run: its curve, its refusals, and whether it does what it has declared."""

import json
import re
from typing import Any

from playwright.sync_api import Browser, Page, expect

from app.charts.model import without_zeros
from tests.conftest import SAMPLED, Ledger, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import visit, words
from tests.dashboard.sample_hospital import Hospital
from tests.login_helpers import signed_in


def numbers(text: str, place: int = 0) -> dict[str, Any]:
    """What a page's script draws."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text)
    answer: dict[str, Any] = json.loads(found[place])
    return answer


def a_run(ledger: Ledger) -> str:
    ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget()
    return ledger.run()


def test_the_curve_is_the_history_that_the_api_tells(ledger: Ledger) -> None:
    run = a_run(ledger)
    for _ in range(3):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").status_code == 200
    answer = ledger.get(f"/v1/runs/{run}/history").json()["points"]
    series = {each["role"]: each for each in numbers(visit(ledger, f"/runs/{run}", signed_in(ledger)).text)["series"]}
    assert series["spent"]["points"][1:] == [[each["next_step"], each["epsilon"]] for each in answer]
    assert {y for _, y in series["limit"]["points"]} == {answer[-1]["epsilon_limit"]}
    remaining = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    assert series["projected"]["points"][0] == series["spent"]["points"][-1]
    assert series["projected"]["points"][-1][0] == min(15 + remaining, 15 + 3 * 15)


def test_the_projection_ends_where_nothing_more_fits(ledger: Ledger) -> None:
    run = a_run(ledger)
    remaining = ledger.post(f"/v1/runs/{run}/steps", {"count": 100}, "trainer").json()["steps_remaining"]
    ledger.post(f"/v1/runs/{run}/steps", {"count": remaining // 2}, "trainer")
    answer = numbers(visit(ledger, f"/runs/{run}", signed_in(ledger)).text)
    [projected] = [each["points"] for each in answer["series"] if each["role"] == "projected"]
    assert projected[-1][0] == 100 + remaining
    assert projected[-1][1] <= 1.0
    assert {"x": 100.0 + remaining, "label": "budget exhausted"} in answer["marks"]


def test_each_attempt_is_a_line_that_begins_with_what_was_spent(ledger: Ledger) -> None:
    run = a_run(ledger)
    ledger.post(f"/v1/runs/{run}/steps", {"count": 10}, "trainer")
    assert ledger.post(f"/v1/runs/{run}/attempts", {"first_step": 4}, "trainer").status_code == 201
    ledger.post(f"/v1/runs/{run}/steps", {"count": 2, "attempt": 2}, "trainer")
    answer = numbers(visit(ledger, f"/runs/{run}", signed_in(ledger)).text)["series"]
    first, second = (each for each in answer if each["name"].startswith("Attempt"))
    assert second["points"][0] == [4, first["points"][-1][1]]
    assert second["points"][-1][1] > first["points"][-1][1]


def test_steps_with_another_noise_are_drawn_and_told_as_a_deviation(ledger: Ledger) -> None:
    run = a_run(ledger)
    ledger.post(f"/v1/runs/{run}/steps", {"count": 10}, "trainer")
    other = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 2.5}}
    ledger.post(f"/v1/runs/{run}/steps", {"count": 10, "event": other}, "trainer")
    reply = visit(ledger, f"/runs/{run}", signed_in(ledger))
    noise = numbers(reply.text, 1)
    assert noise["y"]["label"] == "Noise multiplier"
    assert noise["series"][0]["points"] == [[0, 1.1], [10, 2.5], [20, 2.5]]
    assert "noise multiplier 1.1 2.5 10" in words(reply)


def test_a_refusal_says_why_and_what_would_fit(ledger: Ledger) -> None:
    run = a_run(ledger)
    refused = ledger.post(f"/v1/runs/{run}/steps", {"count": 10_000_000}, "trainer")
    assert refused.status_code == 403
    reply = visit(ledger, f"/runs/{run}", signed_in(ledger))
    assert without_zeros(refused.json()["detail"]) in words(reply)
    assert "exhausted." not in words(reply)
    assert [each["kind"] for each in numbers(reply.text)["series"] if each["role"] == "refused"] == ["points"]


def test_reservations_are_told_with_their_lease(ledger: Ledger) -> None:
    run = a_run(ledger)
    plan = {"plan": [{"event": SAMPLED, "count": 100}], "lease_seconds": 3600}
    made = ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").json()
    answer = words(visit(ledger, f"/runs/{run}", signed_in(ledger)))
    assert f"{made['id']} active 0 of 100" in answer


def test_steps_that_a_lowered_limit_revoked_are_told(ledger: Ledger) -> None:
    run = a_run(ledger)
    plan = {"plan": [{"event": SAMPLED, "count": 100}], "lease_seconds": 3600}
    assert ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").status_code == 201
    assert "revoked" not in words(visit(ledger, f"/runs/{run}", signed_in(ledger)))
    lowered = {"limit": {"epsilon": 0.1, "delta": 1e-5}, "reason": "Less."}
    budget = ledger.get(f"/v1/runs/{run}").json()["budget"]
    assert ledger.post(f"/v1/accounts/{budget}/limit", lowered, If_Match="*").status_code == 200
    answer = words(visit(ledger, f"/runs/{run}", signed_in(ledger)))
    assert "active 0 of 100 100 revoked" in answer
    assert "Revoked steps are refused" in answer


def test_a_run_that_did_nothing_yet_shows_where_its_default_event_would_lead(ledger: Ledger) -> None:
    run = a_run(ledger)
    drawn = numbers(visit(ledger, f"/runs/{run}", signed_in(ledger)).text)["series"]
    remaining = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    assert (drawn[0]["name"], drawn[0]["points"][-1][0]) == ("If it goes on", remaining)


def test_a_run_without_a_default_event_has_words_in_the_place_of_a_chart(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    answer = words(visit(ledger, f"/runs/{ledger.run(event=None)}", signed_in(ledger)))
    assert "No data yet" in answer


def test_a_run_that_was_told_nothing_says_so(ledger: Ledger) -> None:
    answer = words(visit(ledger, f"/runs/{a_run(ledger)}", signed_in(ledger)))
    assert "No refusals" in answer
    assert "No reservations" in answer


def test_a_run_of_others_is_not_there(ledger: Ledger) -> None:
    run = a_run(ledger)
    theirs, nowhere = (
        visit(ledger, path, signed_in(ledger, "admin", "clinic")) for path in (f"/runs/{run}", "/runs/run_nowhere")
    )
    assert (theirs.status_code, nowhere.status_code) == (404, 404)
    assert words(theirs).replace(run, "run_nowhere").split("request")[0] == words(nowhere).split("request")[0]


def test_a_poll_with_nothing_new_is_a_304_until_somebody_charges_the_same_budget(ledger: Ledger) -> None:
    run = a_run(ledger)
    other, cookie = ledger.run(name="other"), signed_in(ledger)
    first = visit(ledger, f"/runs/{run}", cookie, X_Part="page")
    again = visit(ledger, f"/runs/{run}", cookie, X_Part="page", If_None_Match=first.headers["etag"])
    assert (first.status_code, again.status_code) == (200, 304)
    ledger.post(f"/v1/runs/{other}/steps", {}, "trainer")
    changed = visit(ledger, f"/runs/{run}", cookie, X_Part="page", If_None_Match=first.headers["etag"])
    assert changed.status_code == 200


def test_a_person_sees_the_curve_and_its_numbers(
    hospital: Hospital, server: LiveServer, page: Page, sign_in: SignIn
) -> None:
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/runs/{hospital.refused}")
    canvas = page.locator("#curve canvas")
    expect(canvas).to_have_attribute("data-drawn", re.compile(r"^[1-9]\d+$"))
    assert "Epsilon over steps" in (canvas.get_attribute("aria-label") or "")
    page.locator("#curve").get_by_text("Show as a table").click()
    expect(page.locator("#curve table")).to_contain_text("Spent")
    expect(page.get_by_role("region", name="Refused steps")).to_contain_text("9\N{NARROW NO-BREAK SPACE}000")


def test_the_curve_of_a_run_grows_while_somebody_looks(page: Page, changing: LiveServer, sign_in: SignIn) -> None:
    with changing.client("trainer") as trainer:
        asked = {"name": "growing", "budget": "mimic/readmission", "event": SAMPLED}
        run = trainer.post("/v1/runs", json=asked).json()["id"]
        sign_in(page, changing, "viewer")
        page.goto(f"{changing.url}/runs/{run}")
        curve = page.locator("#curve")
        expect(curve.locator("canvas")).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
        curve.get_by_text("Show as a table").click()
        expect(curve.locator("th[scope=col]").nth(1)).to_have_text("If it goes on")
        for count, steps in ((40, "40"), (60, "100")):
            assert trainer.post(f"/v1/runs/{run}/steps", json={"count": count}).status_code == 200
            expect(page.locator("#facts dd").nth(2)).to_contain_text(re.compile(rf"^\s*{steps}"))
            expect(curve.locator("tbody th", has_text=re.compile(rf"^{steps}$"))).to_be_visible()
        expect(curve.locator("th[scope=col]").nth(1)).to_have_text("Spent")


def test_the_statement_of_a_run_opens_for_who_is_signed_in(ledger: Ledger) -> None:
    run, cookie = a_run(ledger), signed_in(ledger)
    link = f"/v1/runs/{run}/statement.html"
    assert f'href="{link}"' in visit(ledger, f"/runs/{run}", cookie).text
    assert "Privacy statement of a model" in visit(ledger, link, cookie).text


def test_a_chart_follows_the_colours_of_the_screen_and_is_printed_on_white(
    hospital: Hospital, server: LiveServer, page: Page, sign_in: SignIn
) -> None:
    colour = "() => Chart.getChart(document.querySelector('#curve canvas')).data.datasets[0].borderColor"
    sign_in(page, server, "viewer")
    page.emulate_media(color_scheme="light")
    page.goto(f"{server.url}/runs/{hospital.refused}")
    expect(page.locator("#curve canvas")).to_have_attribute("data-drawn", re.compile(r"^[1-9]"))
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    # What listens to the colours is told before a frame; to wait for a function takes eval, which is forbidden.
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    dark = page.evaluate(colour)
    assert dark != light
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(colour) == light
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colour) == dark


def test_the_page_of_a_run_is_read_without_script(hospital: Hospital, server: LiveServer, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/sign-in?next=/runs/{hospital.refused}")
    page.get_by_label("API key").fill(server.key("viewer"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("transformer")
    page.wait_for_load_state("load")
    assert page.locator("#curve img").evaluate("image => image.naturalWidth") > 0
    page.locator("#curve").get_by_text("Show as a table").click()
    expect(page.locator("#curve table")).to_contain_text("Limit")
    context.close()


def test_a_refused_run_shows_its_ways_on_and_requests_a_limit(
    page: Page, changing: LiveServer, sign_in: SignIn
) -> None:
    with changing.client("admin") as api:
        budget = api.post(
            "/v1/budgets",
            json={"name": "asking", "parent": "stroke-registry", "limit": {"epsilon": 0.4, "delta": 1e-6}},
        ).json()
        run = api.post(
            "/v1/runs", json={"name": "wide", "budget": budget["id"], "event": SAMPLED, "expected_steps": 4000}
        ).json()
    with changing.client("trainer") as api:
        refusal = api.post(f"/v1/runs/{run['id']}/steps", json={"count": 4000}).json()
    offered = {each["type"]: each for each in refusal["alternatives"]}
    [raised] = [each for each in offered["higher_limit"]["limits"] if each["account"] == budget["id"]]
    sign_in(page, changing, "trainer")
    page.goto(refusal["url"])
    ways = page.get_by_role("region", name="Alternatives")
    expect(ways).to_contain_text("all 4,000 steps that the training still needs would fit")
    form = ways.locator("form").filter(has_text="asking")
    expect(form.get_by_label("Epsilon of stroke-registry/asking")).to_have_value(f"{raised['epsilon']}")
    form.get_by_label("Reason").fill("All epochs, as planned.")
    form.get_by_role("button", name="Request a higher limit").click()
    page.get_by_role("dialog").get_by_role("button", name="Request").click()
    expect(page.get_by_text("Limit requested. Another person decides it.")).to_be_visible()
    with changing.client("privacy_officer") as api:
        [proposal] = api.get(f"/v1/proposals?account={budget['id']}&status=open").json()["items"]
        assert proposal["proposed"]["limit"] == {"epsilon": raised["epsilon"], "delta": raised["delta"]}
        assert api.post(f"/v1/proposals/{proposal['id']}/approve", json={}).status_code == 200


def test_an_ended_run_tells_how_and_has_no_steps_left(ledger: Ledger) -> None:
    run = a_run(ledger)
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").status_code == 200
    assert ledger.post(f"/v1/runs/{run}/complete", {"reason": "budget_exhausted"}, "trainer").status_code == 200
    reply = visit(ledger, f"/runs/{run}", signed_in(ledger))
    assert "completed budget used up at" in words(reply)
    assert "the run has ended" in words(reply)
    assert "more steps fit" not in words(reply)
    assert "projected" not in {each["role"] for each in numbers(reply.text)["series"]}


def test_requests_for_accounts_outside_of_the_scope_are_shown_to_their_author(ledger: Ledger) -> None:
    run = a_run(ledger)
    found = ledger.get(f"/v1/runs/{run}").json()
    higher = {"limit": {"epsilon": 90.0, "delta": 1e-5}}
    for name, role in {"team": "trainer", "colleague": "viewer"}.items():
        body = {"name": name, "role": role, "scope": found["budget"]}
        ledger.keys["hospital", name] = ledger.post("/v1/api-keys", body).json()["key"]
    population = found["path"].split("/")[0]
    body = higher | {"reason": "Of the planner.", "account": population}
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "admin").json()

    def shown(name: str) -> set[str]:
        text = words(visit(ledger, f"/runs/{run}", signed_in(ledger, name)))
        return {reason for reason in ("Of the planner.", "Of the team.") if reason in text}

    assert (shown("viewer"), shown("team"), shown("colleague")) == ({"Of the planner."}, set(), set())
    assert ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    body = higher | {"reason": "Of the team.", "account": population}
    assert ledger.post(f"/v1/runs/{run}/limit-requests", body, "team").status_code == 201
    assert (shown("viewer"), shown("colleague")) == ({"Of the planner.", "Of the team."}, set())
    assert shown("team") == {"Of the team."}


def test_limits_that_were_requested_or_reached_are_not_requested_again(ledger: Ledger) -> None:
    run = a_run(ledger)
    refusal = ledger.post(f"/v1/runs/{run}/steps", {"count": 10**7}, "trainer").json()
    [higher] = [each for each in refusal["alternatives"] if each["type"] == "higher_limit"]
    asked = higher["limits"][0]

    def offered() -> bool:
        page = visit(ledger, f"/runs/{run}", signed_in(ledger, "trainer"))
        return f'name="account" value="{asked["account"]}"' in page.text

    assert offered()
    limit = {"epsilon": asked["epsilon"], "delta": asked["delta"]}
    body = {"account": asked["account"], "limit": limit, "reason": "All epochs."}
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "trainer").json()
    assert not offered()
    assert ledger.post(f"/v1/proposals/{made['id']}/reject", {}, "privacy_officer").status_code == 200
    assert offered()
    made = ledger.post(f"/v1/runs/{run}/limit-requests", body, "trainer").json()
    assert ledger.post(f"/v1/proposals/{made['id']}/approve", {}, "privacy_officer").status_code == 200
    assert not offered()
