"""A newcomer's way: from the printed link over population, budget, key and the trainer's lines to a live run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from app.commands.first_admin import LINK_PATH
from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.page_actions import browser_client
from tests.dashboard.test_accessibility import hindrances
from tests.servers import INIT


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("empty"), environment={INIT: "true"})
    server.start()
    yield server
    server.stop()


def _confirm(page: Page, button: str, sure: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=sure, exact=True).click()


def _sign_in_by_link(page: Page, server: LiveServer) -> None:
    [link] = [line.strip() for line in server.log().splitlines() if LINK_PATH in line]
    page.goto(link)
    assert hindrances(page) == []
    page.get_by_role("button", name="Sign in as an admin").click()
    page.wait_for_url(f"{server.url}/")


def test_from_the_printed_link_to_a_run_that_takes_steps(page: Page, empty: LiveServer) -> None:
    _sign_in_by_link(page, empty)
    current = page.locator("[aria-current=step] h3")
    expect(current).to_have_text("Create a population")
    assert hindrances(page) == []
    expect(page.get_by_role("region", name="Unfinished runs")).to_have_count(0)
    page.get_by_label("Name", exact=True).fill("mimic")
    page.get_by_label("Who is protected").fill("patient")
    page.get_by_label("Limit: epsilon").fill("8")
    page.get_by_label("Limit: delta").fill("1e-6")
    _confirm(page, "Create the population", "Create")

    expect(current).to_have_text("Create a budget")
    page.get_by_label("Name", exact=True).first.fill("icu-team")
    page.get_by_label("Limit: epsilon").first.fill("3")
    page.get_by_label("Limit: delta").first.fill("1e-6")
    _confirm(page, "Create the budget", "Create")

    expect(current).to_have_text("Create a key for the trainer")
    page.get_by_label("Name", exact=True).first.fill("trainer of the cluster")
    _confirm(page, "Create the key", "Create the key")
    key = page.get_by_role("textbox", name="The trainer's key").input_value()
    assert re.fullmatch(r"key_\w+\.[\w-]{43}", key)
    page.get_by_role("button", name="I have saved it").click()

    expect(current).to_have_text("Ask before each step")
    assert hindrances(page) == []
    expect(page.get_by_text("Waiting for the first step")).to_be_visible()
    shell, lines = page.locator("pre[data-copy]").all_inner_texts()
    assert f"export EPSILON_LEDGER_URL={empty.url}\n" in shell
    assert 'budget="mimic/icu-team"' in lines
    given = dict(re.findall(r"export (\w+)=(.*)", shell)) | {"EPSILON_LEDGER_API_KEY": key}
    done = subprocess.run(
        [sys.executable, "-c", lines + "pass"], env=_environment() | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    expect(page.get_by_text("The first step has arrived.")).to_be_visible()  # nobody has reloaded the page
    page.get_by_role("link", name="first-run").first.click()
    expect(page.get_by_role("heading", name="first-run")).to_be_visible()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}


def test_a_registered_run_is_waited_for(page: Page, empty: LiveServer, sign_in: SignIn) -> None:
    with empty.client("admin") as http:
        terms = {"name": "mimic", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        limit = {"limit": {"epsilon": 3.0, "delta": 1e-6}}
        assert http.post("/v1/populations", json=terms | limit).status_code == 201
        assert http.post("/v1/budgets", json={"name": 'o"neil <b>', "parent": "mimic"} | limit).status_code == 201
        event = {"type": "gaussian", "noise_multiplier": 90.0}
        run = {"name": "slow", "budget": 'mimic/o"neil <b>', "event": event}
        sign_in(page, empty, "admin")
        assert 'budget="mimic/o\\u0022neil' in page.locator("pre[data-copy]").last.inner_text().replace(
            '\\"', "\\u0022"
        )
        made = http.post("/v1/runs", json=run).json()["id"]
        expect(page.get_by_text("is registered. Waiting for its first step")).to_be_visible()
        expect(page.locator("[aria-current=step]")).to_have_count(0)
        assert http.post(f"/v1/runs/{made}/steps", json={"count": 2}).status_code == 200
        expect(page.get_by_text("has taken 2 steps")).to_be_visible()
        assert http.post("/v1/runs", json=run | {"name": "second"}).status_code == 201
        expect(page.locator("#first")).to_be_empty()


def test_who_may_create_nothing_sees_no_guide(empty: LiveServer) -> None:
    for role, shown in (("viewer", False), ("trainer", False), ("budget_admin", True), ("admin", True)):
        with browser_client(empty, role) as client:
            assert ("First steps" in client.get("/").text) is shown, role
