"""Decisions: found by every filter, refusals explained, one by one to the link of the chain."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from app.charts.model import without_zeros
from tests.conftest import Ledger, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import visit, without_breaks
from tests.dashboard.page_actions import browser_client, scoped_client
from tests.dashboard.sample_hospital import Hospital, at_past
from tests.login_helpers import signed_in


@pytest.fixture
def visitor(server: LiveServer) -> Iterator[httpx2.Client]:
    with browser_client(server, "viewer") as client:
        yield client


def outcomes(text: str) -> list[str]:
    return re.findall(r'<tbody class="(\w+)">', text)


def test_somebody_finds_out_why_a_run_was_refused(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    page.get_by_role("link", name="Decisions").click()
    page.get_by_label("Outcome").select_option("refused")
    page.get_by_label("Population, budget or run").fill("stroke-registry")
    page.get_by_role("button", name="Find").click()
    first = page.locator("tbody.refused").first
    expect(first).to_contain_text("9\N{NARROW NO-BREAK SPACE}000")
    expect(first).to_contain_text("None of the requested steps fits. With a noise multiplier of")
    first.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("stroke-registry/outcome-models/transformer")
    with server.client("viewer") as api:
        query = "account=stroke-registry&decision=refused&limit=1"
        (answer,) = api.get(f"/v1/decisions?{query}").json()["items"]
    main = page.locator("main")
    for words in (answer["refusal"]["detail"], answer["hash"], answer["request_id"], answer["actor"]):
        expect(main).to_contain_text(without_zeros(words))
    [more] = [each for each in answer["refusal"]["alternatives"] if each["type"] == "more_noise"]
    expect(main.get_by_role("listitem").filter(has_text=f"{more['noise_multiplier']:g}")).to_be_visible()
    expect(main.locator("pre")).to_contain_text('"noise_multiplier": 0.6')
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Decision {answer['position'] - 1} ")


def test_pages_follow_each_other_without_gap_and_without_script(
    browser: Browser, server: LiveServer, sign_in: SignIn
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.goto(f"{server.url}/decisions?since=2020-01-01")
    seen: list[str | None] = []
    while True:
        seen += [each.get_attribute("href") for each in page.locator("tbody td:first-child a").all()]
        older = page.get_by_role("link", name="Older")
        if not older.count():
            break
        with page.expect_navigation():  # a click does not wait for the whole page
            older.click()
    with server.client("viewer") as api:
        items = api.get("/v1/decisions", params={"limit": 200}).json()["items"]
    assert seen == [f"/decisions/{each['run']}/{each['position']}" for each in items]
    page.get_by_role("link", name="Newest").click()
    assert "after=" not in page.url
    assert "since=2020-01-01" in page.url
    context.close()


def test_every_filter_of_the_api_filters_here(server: LiveServer, visitor: httpx2.Client, hospital: Hospital) -> None:
    with server.client("viewer") as api:
        items = api.get("/v1/decisions", params={"limit": 200}).json()["items"]
    middle = items[len(items) // 2]
    for filters in (
        {"run": hospital.ids["imaging/denoising/baseline"]},
        {"account": "imaging/denoising"},
        {"account": hospital.ids["imaging/denoising/baseline"]},
        {"decision": "reported"},
        {"actor": middle["actor"], "decision": "refused"},
        {"since": middle["created_at"], "decision": "admitted"},
        {"until": middle["created_at"]},
    ):
        found = without_breaks(visitor.get("/decisions", params=filters).text)
        with server.client("viewer") as api:
            expected = api.get("/v1/decisions", params=filters | {"limit": 50}).json()["items"]
        links = re.findall(r'<td><a href="/decisions/(\w+)/(\d+)">', found)
        assert links == [(each["run"], str(each["position"])) for each in expected]
        assert expected


def test_moments_without_a_zone_are_meant_in_utc(server: LiveServer, visitor: httpx2.Client) -> None:
    with server.client("viewer") as api:
        at = api.get("/v1/decisions", params={"limit": 20}).json()["items"][19]["created_at"]
    day = at[:10]
    with server.client("viewer") as api:
        expected = api.get("/v1/decisions", params={"until": f"{day}T00:00:00Z", "limit": 50}).json()["items"]
    for written in (day, f"{day}T00:00", f"{day}T02:00+02:00"):
        found = without_breaks(visitor.get("/decisions", params={"until": written}).text)
        assert re.findall(r'<td><a href="/decisions/(\w+)/', found) == [each["run"] for each in expected]


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"account": "nobody/here"}, "account", "nobody"),
        ({"run": "run_nowhere"}, "run", "run_nowhere"),
        ({"decision": "perhaps"}, "decision", "admitted"),
        ({"since": "yesterday"}, "since", "write a moment"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "until", "lies before `since`"),
        ({"actor": "x" * 5000}, "actor", "at most"),
    ],
)
def test_what_cannot_be_found_is_told_at_its_field(
    visitor: httpx2.Client, query: dict[str, str], field: str, words: str
) -> None:
    reply = visitor.get("/decisions", params=query)
    assert reply.status_code == 200
    (answer,) = re.findall(rf'id="{field}-fault">([^<]+)<', reply.text)
    assert words in answer
    assert reply.text.count('aria-invalid="true"') == (field != "decision")
    assert "Invalid search" in reply.text


def test_an_empty_list_says_why(server: LiveServer, visitor: httpx2.Client) -> None:
    assert "No matching decisions" in visitor.get("/decisions?actor=key_nobody").text
    with browser_client(server, "viewer", "clinic") as clinic:
        assert "No decisions yet" in clinic.get("/decisions").text


def test_nobody_sees_what_is_out_of_reach(server: LiveServer, hospital: Hospital) -> None:
    elsewhere = f"/decisions/{hospital.refused}/0"
    with scoped_client(server, "viewer", hospital.ids["mimic"]) as client:
        text = client.get("/decisions").text
        assert outcomes(text)
        assert "stroke-registry" not in text
        assert client.get(elsewhere).status_code == 403
        assert "lies elsewhere" in client.get("/decisions?account=imaging").text
    with browser_client(server, "viewer", "clinic") as clinic:
        assert clinic.get(elsewhere).status_code == 404
    with browser_client(server, "viewer") as own:
        assert own.get(elsewhere).status_code == 200
        assert own.get(f"/decisions/{hospital.refused}/999999").status_code == 404
        assert own.get(f"/decisions/{hospital.refused}/{10**30}").status_code == 422
        assert own.get("/decisions?after=nonsense").status_code == 422


def test_a_refusal_by_a_replica_whose_clock_is_behind_is_shown_within_a_minute(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    run, other = ledger.run(), ledger.run(name="other")

    def refuse(run_id: str) -> None:
        assert ledger.post(f"/v1/runs/{run_id}/steps", {"count": 77_000_000}, "trainer").status_code == 403

    with at_past(datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)) as clock:
        cookie = signed_in(ledger)
        refuse(run)
        tag = visit(ledger, "/decisions", cookie, X_Part="page").headers["etag"]
        clock.at -= timedelta(seconds=5)
        refuse(other)
        clock.at += timedelta(minutes=1)
        found = visit(ledger, "/decisions", cookie, X_Part="page", If_None_Match=tag)
    assert found.status_code == 200
    assert f"/decisions/{other}/0" in found.text
