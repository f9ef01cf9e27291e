"""The page of runs: every filter, sorted, page by page, and downloaded."""

import csv
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import words
from tests.dashboard.page_actions import browser_client, scoped_client

OWNER = "Dana Roth"
MANY = 60


@pytest.fixture(scope="module")
def described(changing: LiveServer) -> dict[str, Any]:
    """A run that somebody has described."""
    with changing.client("admin") as api:
        [run] = api.get("/v1/runs?q=unet").json()["items"]
        about = {"owner": OWNER, "display_name": "U-Net", "labels": {"team": "imaging", "model": "unet <b>"}}
        changed: dict[str, Any] = api.patch(f"/v1/runs/{run['id']}", json=about).raise_for_status().json()
    return changed


@pytest.fixture
def viewer(changing: LiveServer) -> Iterator[httpx2.Client]:
    with browser_client(changing, "viewer") as client:
        yield client


def links_of(reply: httpx2.Response) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'href="([^"]*)"', reply.text)]


def rows_of(page: Page) -> list[str]:
    return page.locator("#list tbody th a").all_inner_texts()


def test_somebody_finds_a_run_by_what_people_call_it(
    page: Page, changing: LiveServer, sign_in: SignIn, described: dict[str, Any]
) -> None:
    sign_in(page, changing, "viewer")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    assert len(rows_of(page)) > 3
    page.get_by_label("Search").fill("u-net")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name="Matching runs")).to_be_visible()
    assert rows_of(page) == ["U-Net"]
    row = page.locator("#list tbody tr")
    for text in (
        OWNER,
        "team:imaging",
        "model:unet <b>",
        "imaging/segmentation",
        f"of {described['epsilon_limit']:g}",
    ):
        expect(row).to_contain_text(text)
    row.get_by_role("link", name="team:imaging").click()
    expect(page.get_by_role("link", name="Remove the filter team:imaging")).to_be_visible()
    expect(page.get_by_label("Search")).to_have_value("u-net")
    page.get_by_label("Label", exact=True).fill("model")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("link", name="Remove the filter model")).to_be_visible()
    assert rows_of(page) == ["U-Net"]
    page.get_by_role("link", name="Remove the filter team:imaging").click()
    expect(page.get_by_role("link", name="Remove the filter team:imaging")).to_have_count(0)
    page.get_by_role("link", name="U-Net").click()
    expect(page).to_have_url(f"{changing.url}/runs/{described['id']}")


def test_a_click_on_a_column_sorts_and_a_second_one_turns_the_order(
    page: Page, changing: LiveServer, sign_in: SignIn
) -> None:
    sign_in(page, changing, "viewer")
    page.goto(f"{changing.url}/runs?status=active")
    heads = page.locator("#list thead")
    expect(heads.locator("[aria-sort]")).to_have_text("Registered ▼")
    heads.get_by_role("link", name="Run", exact=True).click()
    expect(heads.locator("[aria-sort=ascending]")).to_have_text("Run ▲")
    names = rows_of(page)
    assert names == sorted(names, key=str.lower)
    assert len(names) > 1
    heads.get_by_role("link", name="Run").click()
    expect(heads.locator("[aria-sort=descending]")).to_have_text("Run ▼")
    assert rows_of(page) == names[::-1]
    expect(page.get_by_label("Status")).to_have_value("active")


def test_the_download_has_the_rows_of_the_list(
    page: Page, changing: LiveServer, sign_in: SignIn, described: dict[str, Any]
) -> None:
    sign_in(page, changing, "viewer")
    page.goto(f"{changing.url}/runs?owner={OWNER}&label=team:imaging&created_after=2020-01-01T00:00&sort=name")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    assert download.value.suggested_filename == "runs.csv"
    [row] = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert (row["id"], row["owner"]) == (described["id"], OWNER)


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("status=gone", "status", "active"),
        ("end_reason=gone", "end_reason", "budget_exhausted"),
        ("within=nowhere", "within", "nowhere"),
        ("created_after=soon", "created_after", "write a moment"),
        ("label=:x", "label", "has no key"),
        ("sort=price", "sort", "created_at"),
        ("after=???", "sort", "cursor"),
    ],
)
def test_what_is_wrong_is_said_and_lists_nothing(viewer: httpx2.Client, query: str, field: str, said: str) -> None:
    reply = viewer.get(f"/runs?{query}")
    assert reply.status_code == 200
    assert "Invalid search" in words(reply)
    assert said in words(reply)
    assert 'id="list"' in reply.text
    assert "/runs/run_" not in reply.text
    if field != "sort":
        assert f'id="{field}-fault"></span>' not in reply.text


def test_runs_are_found_by_how_they_ended(page: Page, changing: LiveServer, sign_in: SignIn) -> None:
    with changing.client("admin") as api:
        for name, end in {"a-used-up": "complete", "a-lost": "abort", "a-finished": "complete"}.items():
            run = api.post("/v1/runs", json={"name": name, "budget": "mimic/readmission"}).json()["id"]
            reason = {"a-used-up": {"reason": "budget_exhausted"}, "a-lost": {"reason": "lost"}}.get(name, {})
            api.post(f"/v1/runs/{run}/{end}", json=reason).raise_for_status()
    sign_in(page, changing, "auditor")
    page.goto(f"{changing.url}/runs?q=/a-")
    rows = page.locator("#list tbody tr")
    expect(rows.filter(has_text="a-lost")).to_contain_text("aborted lost")
    expect(rows.filter(has_text="a-finished")).to_contain_text("completed finished")
    page.get_by_label("Ended").select_option("budget used up")
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("completed budget used up")
    assert rows_of(page) == ["a-used-up"]
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    [row] = csv.DictReader(io.StringIO(download.value.path().read_text()))
    assert (row["name"], row["end_reason"]) == ("a-used-up", "budget_exhausted")
    page.goto(f"{changing.url}/audit")
    expect(page.locator("main")).to_contain_text("completed the run mimic/readmission/a-used-up: budget used up")


def test_hundreds_of_runs_are_listed_page_by_page_each_once(changing: LiveServer, viewer: httpx2.Client) -> None:
    with changing.client("admin") as api:
        for number in range(MANY):
            body = {"name": f"sweep-{number % 50}", "budget": "mimic/readmission", "labels": {"sweep": "s1"}}
            api.post("/v1/runs", json=body).raise_for_status()
    address: str | None = "/runs?label=sweep:s1&sort=name"
    seen: list[str] = []
    while address:
        links = links_of(viewer.get(address).raise_for_status())
        seen += [link for link in links if link.startswith("/runs/run_")]
        address = next((link for link in links if "after=" in link), None)
    assert len(seen) == len(set(seen)) == MANY
    assert "sweep-7 #2" in words(viewer.get("/runs?q=sweep-7&label=sweep"))


def test_a_key_with_a_scope_sees_the_runs_in_it(changing: LiveServer) -> None:
    with scoped_client(changing, "viewer", "mimic/icu-team") as client:
        found = words(client.get("/runs"))
        assert "lstm-mortality" in found
        assert "transformer" not in found
        assert "Invalid search" in words(client.get("/runs?within=stroke-registry"))
