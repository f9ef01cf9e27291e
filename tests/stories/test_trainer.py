"""A trainer's author, from an empty folder: a script is refused, and follows the advice of the refusal to its end."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect

from app.persistence.database import Database
from app.service.verification import verify
from tests.conftest import LiveServer
from tests.dashboard.conftest import Enter, session_cookie
from tests.dashboard.html_reader import words
from tests.fork_server import ForkedProcess, service_server

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
MODULE = "tests.stories.scripts.train"
DELTA = 1e-5
STEPS = 600


@dataclass
class Author:
    """The author of a trainer, in a shell in a folder with nothing but the script."""

    server: LiveServer
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        key = self.server.key("trainer")
        return os.environ | {"EPSILON_LEDGER_URL": self.server.url, "EPSILON_LEDGER_API_KEY": key}

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    @contextmanager
    def start(self, budget: str, advice: str, *options: str) -> Iterator[ForkedProcess]:
        """Start the script in a fork, which does not outlive the test."""
        arguments = ("--budget", budget, "--after-refusal", advice, *options)
        with (self.folder / "output").open("wb") as output:
            process = ForkedProcess(service_server(), MODULE, *arguments, environment=self.environment, output=output)
        try:
            yield process
        finally:
            process.kill()

    def read_until(self, process: ForkedProcess, said: str) -> str:
        """Wait until the script has printed some words."""
        until = time.monotonic() + 120
        while said not in self.output:
            assert process.poll() is None, self.output
            assert time.monotonic() < until, self.output
            time.sleep(0.05)
        return self.output

    def finish(self, process: ForkedProcess) -> str:
        """Wait for the end of the script, and return all that it printed."""
        assert process.wait(timeout=120) == 0, self.output
        return self.output

    def run(self, budget: str, advice: str, *options: str) -> str:
        """Run the script to its end, and return its output."""
        with self.start(budget, advice, *options) as process:
            return self.finish(process)


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
    return Author(server, tmp_path)


def new_budget(server: LiveServer, name: str, epsilon: float = 6.0) -> str:
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


def look(server: LiveServer, address: str) -> httpx2.Response:
    """Read a page as a trainer."""
    cookie = session_cookie(server, "trainer")
    return httpx2.get(address, headers={"Cookie": f"{cookie['name']}={cookie['value']}"}, trust_env=False, timeout=60)


def check_end(server: LiveServer, run: dict[str, Any], how: str) -> httpx2.Response:
    """Look how a run has ended at the address that the script printed; return its page."""
    page = look(server, run["url"])
    assert f"completed {how} at" in words(page), words(page)
    assert "the run has ended" in words(page)
    return page


def test_refused_script_prints_its_page_and_the_alternatives(author: Author, server: LiveServer) -> None:
    shutil.copy(SCRIPT, author.folder)
    done = subprocess.run(
        [sys.executable, "train.py", "--budget", new_budget(server, "plain")],
        cwd=author.folder,
        env=author.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    run = read_run(server, done.stdout)
    last = done.stderr.strip().splitlines()[-1]
    assert "BudgetExceededError" in last
    assert last.endswith(f" See {run['url']}")
    left = STEPS - run["next_step"]
    noise = re.search(rf"Alternatives: .*; or a noise multiplier of ([\d.]+) for all {left} steps that are still", last)
    assert noise is not None, last
    assert re.search(rf"a limit of epsilon [\d.]+ for patients/plain, for all {left} steps .* as they are", last), last
    refused = re.findall(r'href="(/decisions/run_\w+/\d+)"', check_end(server, run, "budget used up").text)
    decision = words(look(server, server.url + refused[0]))
    assert f"With a noise multiplier of {noise[1]}, all {left} steps" in decision


def test_script_that_takes_more_noise_finishes(author: Author, server: LiveServer) -> None:
    output = author.run(new_budget(server, "noisier"), "more_noise")
    run = read_run(server, output)
    assert f"completed after {STEPS} of {STEPS} steps" in output
    assert (run["next_step"], run["end_reason"]) == (STEPS, "finished")
    assert f"{STEPS} expected" in words(check_end(server, run, "finished"))


def test_script_that_takes_the_steps_that_fit_stops_there(author: Author, server: LiveServer) -> None:
    output = author.run(new_budget(server, "shorter"), "same_noise")
    run = read_run(server, output)
    said = re.search(r"Alternatives: (\d+) more steps? as they are", output)
    from_step = re.search(r"steps from (\d+) of run_", output)
    assert said is not None, output
    assert from_step is not None, output
    last = int(from_step[1]) + int(said[1])
    assert f"completed after {last} of {STEPS} steps" in output
    assert (run["next_step"], run["end_reason"]) == (last, "budget_exhausted")
    check_end(server, run, "budget used up")


def test_script_whose_budget_is_practically_used_up_stops(author: Author, server: LiveServer) -> None:
    options = ("more_noise", "--steps", "200000", "--noise-multiplier", "0.5")
    output = author.run(new_budget(server, "tiny", 0.05), *options)
    assert "The budget is practically used up: fewer than 1 % of the 200000 steps" in output
    run = read_run(server, output)
    assert (run["next_step"], run["end_reason"]) == (0, "budget_exhausted")
    check_end(server, run, "budget used up")


@pytest.mark.parametrize(
    ("decision", "decided", "reason", "steps", "end"),
    [
        ("approve", "approved", "The board agrees.", f"completed after {STEPS} of {STEPS} steps", "finished"),
        ("reject", "rejected", "The budget of the year is spent.", "completed after", "budget used up"),
    ],
)
def test_script_that_requests_a_higher_limit_waits_for_the_decision(  # noqa: PLR0917 - columns of a table
    author: Author, server: LiveServer, decision: str, decided: str, reason: str, steps: str, end: str
) -> None:
    budget = new_budget(server, decision)
    with author.start(budget, "higher_limit") as process:
        output = author.read_until(process, "requested prp_")
        assert f"of {budget} (open)" in output
        with server.client("privacy_officer") as api:
            for proposal in re.findall(r"requested (prp_\w+)", output):
                assert api.post(f"/v1/proposals/{proposal}/{decision}", json={"reason": reason}).is_success
        output = author.finish(process)
    assert f"{decided}: {reason}" in output
    assert steps in output
    assert reason in words(check_end(server, read_run(server, output), end))


def test_author_requests_a_higher_limit_on_the_page_and_the_script_goes_on(
    author: Author, server: LiveServer, enter: Enter
) -> None:
    budget = new_budget(server, "waiting")
    with author.start(budget, "wait") as process:
        run = read_run(server, author.read_until(process, "refused: "))
        page = enter("trainer", f"/runs/{run['id']}")
        form = page.get_by_role("region", name="Alternatives").locator("form")
        form.get_by_label("Reason").fill("All epochs, as planned.")
        form.get_by_role("button", name="Request a higher limit").click()
        page.get_by_role("dialog").get_by_role("button", name="Request").click()
        expect(page.locator("#message")).to_have_text("Limit requested. Another person decides it.")
        requests = page.get_by_role("list", name="Requests")
        expect(requests).to_contain_text("waits for approval")
        expect(form).to_have_count(0)
        officer = enter("privacy_officer")
        officer.get_by_role("link", name="Approvals").click()
        card = officer.get_by_role("article", name=budget)
        expect(card).to_contain_text("All epochs, as planned.")
        card.get_by_role("button", name="Approve").click()
        dialog = officer.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("The board agrees.")
        dialog.get_by_role("button", name="Approve", exact=True).click()
        expect(officer.locator("#message")).to_have_text("Approved.")
        expect(requests).to_contain_text("approved")
        assert f"completed after {STEPS} of {STEPS} steps" in author.finish(process)
    check_end(server, run, "finished")
