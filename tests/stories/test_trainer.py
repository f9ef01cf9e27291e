"""A trainer's author, from an empty folder: a script is refused, and follows the advice of the refusal to its end."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from app.persistence.database import Database
from app.service.verification import verify
from tests.conftest import LiveServer

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
DELTA = 1e-5
STEPS = 600


@dataclass
class Author:
    """The author of a trainer, in a shell in a folder with nothing but the script."""

    server: LiveServer
    folder: Path

    @contextmanager
    def start(self, budget: str, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start the script as a process of its own, which does not outlive the test."""
        self.folder.mkdir(exist_ok=True)
        shutil.copy(SCRIPT, self.folder)
        process = subprocess.Popen(
            [sys.executable, "train.py", "--budget", budget, *options],
            cwd=self.folder,
            env=os.environ | {"EPSILON_LEDGER_URL": self.server.url, "EPSILON_LEDGER_API_KEY": self.key},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, budget: str, *options: str, fails: bool = False) -> str:
        """Run the script to its end, and return its output."""
        with self.start(budget, *options) as process:
            output, _ = process.communicate(timeout=120)
        assert (process.returncode != 0) is fails, output
        return output

    @property
    def key(self) -> str:
        return self.server.key("trainer")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A new service with a population of patients; the ledger is sound in the end."""
    server = LiveServer(tmp_path_factory.mktemp("service"))
    server.start()
    with server.client("admin") as api:
        population = {
            "name": "patients",
            "privacy_unit": "patient",
            "neighboring_relation": "add_or_remove_one",
            "limit": {"epsilon": 100.0, "delta": DELTA},
        }
        assert api.post("/v1/populations", json=population).status_code == 201
    yield server
    server.stop()
    database = Database(server.database_url)
    assert verify(database).problems == ()
    database.dispose()


@pytest.fixture
def author(server: LiveServer, tmp_path: Path) -> Author:
    return Author(server, tmp_path / "empty")


@contextmanager
def desk(browser: Browser, server: LiveServer, role: str) -> Iterator[Page]:
    """A browser of a person who has signed in."""
    context: BrowserContext = browser.new_context()
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.goto(f"{server.url}/sign-in")
    page.get_by_label("API key").fill(server.key(role))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{server.url}/")
    yield page
    context.close()


def new_budget(server: LiveServer, name: str, epsilon: float) -> str:
    with server.client("admin") as api:
        body = {"name": name, "parent": "patients", "limit": {"epsilon": epsilon, "delta": DELTA}}
        made = api.post("/v1/budgets", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["path"])


def read_run(server: LiveServer, output: str) -> dict[str, Any]:
    """Read the run whose address the script printed."""
    found = re.search(r"http://\S+/runs/(run_\w+)", output)
    assert found is not None, output
    with server.client("viewer") as api:
        run: dict[str, Any] = api.get(f"/v1/runs/{found[1]}").json()
    assert run["url"] == found[0]
    return run


def expect_end(page: Page, run: dict[str, Any], status: str, how: str) -> None:
    """Look how a run has ended at the address that the script printed."""
    page.goto(run["url"])
    facts = page.locator("#facts")
    expect(facts).to_contain_text(status)
    expect(facts).to_contain_text(how)
    expect(facts).to_contain_text("the run has ended")


def test_a_refused_script_prints_the_run_s_page_and_the_alternatives(
    author: Author, server: LiveServer, browser: Browser
) -> None:
    output = author.run(new_budget(server, "plain", 6.0), fails=True)
    run = read_run(server, output)
    last = output.strip().splitlines()[-1]
    assert "BudgetExceededError" in last
    assert last.endswith(f" See {run['url']}")
    left = STEPS - run["next_step"]
    noise = re.search(rf"Alternatives: .*; or a noise multiplier of ([\d.]+) for all {left} steps that are still", last)
    assert noise is not None, last
    assert re.search(rf"a limit of epsilon [\d.]+ for patients/plain, for all {left} steps .* as they are", last), last
    with desk(browser, server, "trainer") as page:
        expect_end(page, run, "completed", "budget used up")
        refused = page.get_by_role("region", name="Refused steps")
        expect(refused).to_contain_text("patients/plain")
        refused.get_by_role("link").first.click()
        expect(page.locator("main")).to_contain_text(f"With a noise multiplier of {noise[1]}, all {left} steps")


def test_a_script_that_takes_more_noise_finishes(author: Author, server: LiveServer, browser: Browser) -> None:
    output = author.run(new_budget(server, "noisier", 6.0), "--after-refusal", "more_noise")
    run = read_run(server, output)
    assert f"completed after {STEPS} of {STEPS} steps" in output
    assert (run["next_step"], run["end_reason"]) == (STEPS, "finished")
    with desk(browser, server, "trainer") as page:
        expect_end(page, run, "completed", "finished")
        expect(page.locator("#facts")).to_contain_text(f"{STEPS} expected")


def test_a_script_that_takes_the_steps_that_fit_stops_there(
    author: Author, server: LiveServer, browser: Browser
) -> None:
    output = author.run(new_budget(server, "shorter", 6.0), "--after-refusal", "same_noise")
    run = read_run(server, output)
    said = re.search(r"Alternatives: (\d+) more steps? as they are", output)
    from_step = re.search(r"steps from (\d+) of run_", output)
    assert said is not None, output
    assert from_step is not None, output
    last = int(from_step[1]) + int(said[1])
    assert f"completed after {last} of {STEPS} steps" in output
    assert (run["next_step"], run["end_reason"]) == (last, "budget_exhausted")
    with desk(browser, server, "trainer") as page:
        expect_end(page, run, "completed", "budget used up")


def test_a_script_whose_budget_is_practically_used_up_stops(
    author: Author, server: LiveServer, browser: Browser
) -> None:
    output = author.run(
        new_budget(server, "tiny", 0.05),
        "--after-refusal",
        "more_noise",
        "--steps",
        "200000",
        "--noise-multiplier",
        "0.5",
    )
    assert "The budget is practically used up: fewer than 1 % of the 200000 steps" in output
    run = read_run(server, output)
    assert (run["next_step"], run["end_reason"]) == (0, "budget_exhausted")
    with desk(browser, server, "trainer") as page:
        expect_end(page, run, "completed", "budget used up")


def approve(page: Page, server: LiveServer, account: str) -> None:
    """Approve the proposal about an account, by the badge in the navigation."""
    page.goto(server.url)
    page.get_by_role("link", name="Approvals").click()
    card = page.get_by_role("article", name=account)
    expect(card).to_contain_text("All epochs")
    card.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("The board agrees.")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(page.locator("#message")).to_have_text("Approved.")


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Read the output of a script up to the line with some words."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if words in line:
            return output
    raise AssertionError(f"{words!r} is not in {output}")


def test_a_script_that_requests_a_higher_limit_finishes_after_the_approval(
    author: Author, server: LiveServer, browser: Browser
) -> None:
    budget = new_budget(server, "asking", 6.0)
    with author.start(budget, "--after-refusal", "higher_limit") as process:
        output = read_until(process, "requested prp_")
        assert f"of {budget} (open)" in output
        run = read_run(server, output)
        with desk(browser, server, "trainer") as page, desk(browser, server, "privacy_officer") as officer:
            page.goto(run["url"])
            requests = page.get_by_role("list", name="Requests")
            expect(requests).to_contain_text("waits for approval")
            approve(officer, server, budget)
            expect(requests).to_contain_text("approved")
            expect(requests).to_contain_text("The board agrees.")
            rest, _ = process.communicate(timeout=120)
            assert "approved: The board agrees." in rest
            assert f"completed after {STEPS} of {STEPS} steps" in rest
            expect_end(page, run, "completed", "finished")
    assert process.returncode == 0


def test_the_author_requests_a_higher_limit_on_the_run_s_page(
    author: Author, server: LiveServer, browser: Browser
) -> None:
    budget = new_budget(server, "waiting", 6.0)
    with author.start(budget, "--after-refusal", "wait") as process:
        run = read_run(server, read_until(process, "refused: "))
        with desk(browser, server, "trainer") as page, desk(browser, server, "privacy_officer") as officer:
            page.goto(run["url"])
            form = page.get_by_role("region", name="Alternatives").locator("form")
            form.get_by_label("Reason").fill("All epochs, as planned.")
            form.get_by_role("button", name="Request a higher limit").click()
            page.get_by_role("dialog").get_by_role("button", name="Request").click()
            expect(page.locator("#message")).to_have_text("Limit requested. Another person decides it.")
            requests = page.get_by_role("list", name="Requests")
            expect(requests).to_contain_text("waits for approval")
            expect(form).to_have_count(0)
            approve(officer, server, budget)
            expect(requests).to_contain_text("approved")
            rest, _ = process.communicate(timeout=120)
            assert f"completed after {STEPS} of {STEPS} steps" in rest
            expect_end(page, run, "completed", "finished")
    assert process.returncode == 0


def test_a_script_whose_request_is_rejected_stops(author: Author, server: LiveServer, browser: Browser) -> None:
    budget = new_budget(server, "rejected", 6.0)
    with author.start(budget, "--after-refusal", "higher_limit") as process:
        run = read_run(server, read_until(process, "requested prp_"))
        with desk(browser, server, "trainer") as page, desk(browser, server, "privacy_officer") as officer:
            officer.goto(f"{server.url}/approvals")
            card = officer.get_by_role("article", name=budget)
            expect(card).to_contain_text("All epochs, as planned.")
            card.get_by_role("button", name=f"Reject {budget}").click()
            dialog = officer.get_by_role("dialog")
            dialog.get_by_label("Reason").fill("This year's budget is spent.")
            dialog.get_by_role("button", name="Reject", exact=True).click()
            expect(officer.locator("#message")).to_have_text("Rejected.")
            page.goto(run["url"])
            requests = page.get_by_role("list", name="Requests")
            expect(requests).to_contain_text("rejected")
            expect(requests).to_contain_text("This year's budget is spent.")
            rest, _ = process.communicate(timeout=120)
            assert "rejected: This year's budget is spent." in rest
            expect_end(page, run, "completed", "budget used up")
