"""A newcomer, from an empty folder: `epsilon-ledger serve`, the printed link, the first page, and a live run."""

import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from app.commands.first_admin import LINK_PATH
from tests.dashboard.page_actions import hindrances
from tests.fork_server import service_server
from tests.open_databases import is_sound
from tests.polling import await_true, status_of
from tests.postgres import free_port

CLIENT = Path(__file__).parents[2] / "sdk" / "pyproject.toml"
STEPS = 100
"""Of the loop that the page shows."""
POLL = 4500
"""Milliseconds after which a page has asked for news."""


class Newcomer:
    """A person with a shell in an empty folder, and no settings."""

    def __init__(self, folder: Path, command: Path) -> None:
        self.folder, self.command = folder, str(command)
        self.log = folder.with_name("serve.log")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}
        self.port = str(free_port())
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve until the block ends; give what the command has printed once the service is ready."""
        with self.log.open("wb") as log:
            command = [self.command, "serve", "--port", self.port]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        try:
            is_ready = f"{self.url}/readyz"
            await_true(lambda: process.poll() is not None or status_of(is_ready) == 200, self.log.read_text, 0.05)
            assert process.poll() is None, self.log.read_text()
            yield self.log.read_text()
        finally:
            process.terminate()
            assert process.wait(30) == 0, self.log.read_text()


def links(printed: str) -> list[str]:
    return [line.strip() for line in printed.splitlines() if LINK_PATH in line]


def create(page: Page, step: str, fields: dict[str, str], button: str, sure: str = "Create") -> None:
    """Fill in the form of a step, which is the only one that is due, and confirm."""
    current = page.locator("[aria-current=step]")
    expect(current.get_by_role("heading")).to_have_text(step)
    for label, value in fields.items():
        current.get_by_label(label, exact=True).fill(value)
    current.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=sure, exact=True).click()


def follow_first_steps(page: Page) -> tuple[str, str, str]:
    """Create population, budget and key as the page asks; return the key, the shell's lines and the trainer's."""
    limit = {"Limit: epsilon": "8", "Limit: delta": "1e-6"}
    create(
        page, "Create a population", {"Name": "mimic", "Who is protected": "patient"} | limit, "Create the population"
    )
    create(page, "Create a budget", {"Name": "icu-team"} | limit | {"Limit: epsilon": "3"}, "Create the budget")
    create(page, "Create a key for the trainer", {"Name": "cluster"}, "Create the key", "Create the key")
    key = page.get_by_role("textbox", name="The trainer's key").input_value()
    page.get_by_role("button", name="I have saved it").click()
    expect(page.locator("[aria-current=step]").get_by_role("heading")).to_have_text("Ask before each step")
    shell, lines = page.locator("pre[data-copy]").all_inner_texts()
    return key, shell, lines


def watch_live(page: Page, batches: threading.Semaphore, trainer: threading.Thread) -> None:
    """Let the trainer take steps, and see each number on a page that nobody reloads."""
    page.clock.fast_forward(POLL)
    expect(page.get_by_text("first-run has taken 1 step;")).to_be_visible()
    page.get_by_role("link", name="mimic/icu-team/first-run").click()
    steps, status = (
        page.locator(".facts div", has=page.get_by_text(name, exact=True)).locator("dd") for name in ("Steps", "Status")
    )
    expect(status).to_contain_text("active")
    page.evaluate("window.sameDocument = true")
    batches.release(6)
    expect(steps.get_by_text("7 decisions", exact=True)).to_be_visible()
    batches.release(STEPS)
    trainer.join(60)
    page.clock.fast_forward(POLL)
    expect(status).to_contain_text("completed")
    expect(steps.get_by_text(f"{STEPS} decisions", exact=True)).to_be_visible()
    assert page.evaluate("window.sameDocument")


def train(lines: str, batches: threading.Semaphore) -> threading.Thread:
    """Run a trainer's lines beside the test, which decides when a training step ends."""
    assert lines.count("# train_step(batch)") == 1
    code = compile(lines.replace("# train_step(batch)", "batches.acquire(timeout=60)"), "lines", "exec")
    trainer = threading.Thread(target=exec, args=(code, {"batches": batches}))
    trainer.start()
    return trainer


@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["forked", "interpreted"])
def test_newcomer_gets_from_an_empty_folder_to_a_live_run(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forked: bool
) -> None:
    (tmp_path / "empty").mkdir()
    programs = service_server().write_environment(tmp_path / "environment") if forked else Path(sys.executable).parent
    newcomer = Newcomer(tmp_path / "empty", programs / "epsilon-ledger")
    page.clock.install()
    with newcomer.serve() as printed:
        [link] = links(printed)
        assert link.startswith(f"{newcomer.url}{LINK_PATH}#")
        page.goto(link)
        expect(page).to_have_url(f"{newcomer.url}{LINK_PATH}")  # the token is in no history
        page.get_by_role("button", name="Sign in as an admin").click()
        page.wait_for_url(f"{newcomer.url}/")
        assert newcomer.log.read_text().count(link.partition("#")[2]) == 1
        key, shell, lines = follow_first_steps(page)
        page.set_viewport_size({"width": 400, "height": 900})
        assert hindrances(page) == []
        assert shell.splitlines()[0] == f"pip install {tomllib.loads(CLIENT.read_text())['project']['name']}"
        settings = dict(re.findall(r"export (\w+)=(.*)", shell))
        assert settings == {"EPSILON_LEDGER_URL": newcomer.url, "EPSILON_LEDGER_API_KEY": "key_…"}
        for name, value in (settings | {"EPSILON_LEDGER_API_KEY": key}).items():
            monkeypatch.setenv(name, value)
        batches = threading.Semaphore(0)
        watch_live(page, batches, train(lines, batches))

        [another] = [line for line in printed.splitlines() if "keys create" in line]
        command = [newcomer.command, *shlex.split(another)[1:]]
        printed_key = subprocess.check_output(command, cwd=newcomer.folder, env=newcomer.environment, text=True)
        assert re.search(r"key_\w+\.[\w-]{43}", printed_key)
        page.goto("about:blank")  # a page that stays open asks a server that is stopped, as the browser's console says

    with newcomer.serve() as printed:
        assert links(printed) == []
        token, origin = {"token": link}, {"Origin": newcomer.url}
        reply = httpx2.post(f"{newcomer.url}{LINK_PATH}", data=token, headers=origin, trust_env=False)
        assert reply.status_code == 401
        page.goto(newcomer.url)
        expect(page.get_by_text(f"first-run has taken {STEPS} steps;")).to_be_visible()
        page.goto("about:blank")
    assert [path.name for path in newcomer.folder.iterdir()] == ["epsilon-ledger.db"]
    is_sound(f"sqlite:///{newcomer.folder / 'epsilon-ledger.db'}")
