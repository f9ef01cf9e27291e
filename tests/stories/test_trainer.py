"""A trainer's author: a script is refused, and follows the advice of the refusal to its end."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from xml.etree.ElementTree import Element

import httpx2
import pytest
from playwright.sync_api import expect

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian, poisson_sampled
from tests.conftest import LiveServer
from tests.dashboard.conftest import Enter, session_cookie
from tests.dashboard.page_visitor import parse, text_of
from tests.open_databases import is_sound
from tests.polling import await_true

DELTA = 1e-5
STEPS = 600
EPOCH = 50
"""Steps that are authorized together, before the first of them."""


@dataclass
class Script:
    """A training loop that follows an advice of the refusal; without one the error ends it."""

    server: LiveServer
    budget: str
    advice: str = ""
    steps: int = STEPS
    noise: float = 1.0
    taken: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "\n".join(self.said)

    def run(self) -> None:
        """Train, and record the end: finished, or budget used up."""
        with LedgerClient(self.server.url, self.server.key("trainer")) as ledger:
            event = poisson_sampled(0.05, gaussian(self.noise))
            run = ledger.create_run("risk-model", budget=self.budget, event=event, expected_steps=self.steps)
            self.said.append(str(run.url))
            expected = (BudgetExceededError,) if self.advice else ()
            with suppress(*expected), run:
                try:
                    self._train(run)
                except BudgetExceededError as refusal:
                    self.said.append(str(refusal))
                    self._follow(ledger, run, refusal)
            self.said.append(f"{run.status} after {self.taken} of {self.steps} steps")

    def start(self, until: str) -> Thread:
        """Run it beside the test; wait until it has said something."""
        thread = Thread(target=self.run, daemon=True)
        thread.start()
        await_true(lambda: until in self.output or not thread.is_alive(), lambda: self.output, 0.05, 120)
        assert until in self.output, self.output
        return thread

    def _train(self, run: Run, until: int | None = None) -> None:
        while (left := (until or self.steps) - self.taken) > 0:
            run.authorize(min(EPOCH, left), event=poisson_sampled(0.05, gaussian(self.noise)))
            self.taken += min(EPOCH, left)  # the steps of the optimizer, each with this noise

    def _follow(self, ledger: LedgerClient, run: Run, refusal: BudgetExceededError) -> None:
        if self.advice == "more_noise" and refusal.more_noise is not None:
            self.noise = refusal.more_noise.noise_multiplier or self.noise
        elif self.advice == "same_noise" and refusal.same_noise is not None:
            self._train(run, self.taken + refusal.same_noise.steps)
            raise refusal
        elif self.advice == "higher_limit" and refusal.higher_limit is not None:
            paths = {limit.account: limit.account_path for limit in refusal.higher_limit.limits or ()}
            for asked in run.request_limit("All epochs, as planned."):
                self.said.append(f"requested {asked.id} of {paths[asked.account or '']} ({asked.status})")
                while (decided := ledger.get_proposal(asked.id)).status == "open":
                    time.sleep(0.2)
                self.said.append(f"{decided.status}: {decided.decision_reason}")
                if decided.status != "approved":
                    raise refusal
        elif self.advice == "wait":
            while not self._fits(run, refusal.steps_needed):
                time.sleep(0.2)
        else:
            raise refusal
        self._train(run)

    @staticmethod
    def _fits(run: Run, steps: int) -> bool:
        with suppress(BudgetExceededError):
            run.preview(steps)
            return True
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A new service with a population of patients; the ledger is sound in the end."""
    with LiveServer(tmp_path_factory.mktemp("service")) as server:
        with server.client("admin") as api:
            unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
            population = {"name": "patients", "limit": {"epsilon": 100.0, "delta": DELTA}} | unit
            assert api.post("/v1/populations", json=population).status_code == 201
        yield server
    is_sound(server.database_url)


def new_budget(server: LiveServer, name: str, epsilon: float = 6.0) -> str:
    with server.client("admin") as api:
        body = {"name": name, "parent": "patients", "limit": {"epsilon": epsilon, "delta": DELTA}}
        made = api.post("/v1/budgets", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["path"])


def read_run(script: Script) -> dict[str, Any]:
    """Read the run whose address the script printed."""
    with script.server.client("viewer") as api:
        run: dict[str, Any] = api.get(f"/v1/runs/{script.said[0].rpartition('/')[2]}").json()
    assert run["url"] == script.said[0]
    return run


def look(server: LiveServer, address: str) -> Element:
    """Read a page as a trainer."""
    cookie = session_cookie(server, "trainer")
    sent = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    return parse(httpx2.get(address, headers=sent, trust_env=False, timeout=60).text)


def check_end(script: Script, how: str) -> Element:
    """Look how a run has ended at the address that the script printed; return its page."""
    page = look(script.server, script.said[0])
    assert f"completed {how} at" in text_of(page), text_of(page)
    assert "the run has ended" in text_of(page)
    return page


def test_refused_script_names_its_page_and_the_alternatives(server: LiveServer) -> None:
    script = Script(server, new_budget(server, "plain"))
    with pytest.raises(BudgetExceededError) as refused:
        script.run()
    run, said = read_run(script), str(refused.value)
    assert said.endswith(f" See {run['url']}")
    left = STEPS - run["next_step"]
    noise = re.search(rf"With a noise multiplier of ([\d.]+), all {left} remaining steps would fit", said)
    assert noise is not None, said
    assert re.search(
        rf"raise the limit of patients/plain to epsilon [\d.]+; all {left} remaining steps then fit unchanged", said
    ), said
    addresses = [each.get("href", "") for each in check_end(script, "budget used up").iter("a")]
    links = [address for address in addresses if re.fullmatch(r"/decisions/run_\w+/\d+", address)]
    assert f"With a noise multiplier of {noise[1]}, all {left} remaining steps" in text_of(
        look(server, server.url + links[0])
    )


def test_script_that_takes_more_noise_finishes_and_one_that_takes_the_steps_that_fit_stops(server: LiveServer) -> None:
    script = Script(server, new_budget(server, "noisier"), "more_noise")
    script.run()
    run = read_run(script)
    assert script.said[-1] == f"completed after {STEPS} of {STEPS} steps"
    assert (run["next_step"], run["end_reason"]) == (STEPS, "finished")
    assert f"{STEPS} expected" in text_of(check_end(script, "finished"))
    script = Script(server, new_budget(server, "shorter"), "same_noise")
    script.run()
    run = read_run(script)
    said = re.search(r"Steps (\d+) to \d+ of run_.* Only the first (\d+) of", script.output)
    assert said is not None, script.output
    last = int(said[1]) + int(said[2])
    assert script.said[-1] == f"completed after {last} of {STEPS} steps"
    assert (run["next_step"], run["end_reason"]) == (last, "budget_exhausted")
    check_end(script, "budget used up")


def test_script_whose_budget_is_practically_used_up_stops(server: LiveServer) -> None:
    script = Script(server, new_budget(server, "tiny", 0.05), "more_noise", 200_000, 0.5)
    script.run()
    assert "even at ten times the noise, fewer than 1% of the 200,000 remaining steps would fit" in script.output
    run = read_run(script)
    assert (run["next_step"], run["end_reason"]) == (0, "budget_exhausted")
    check_end(script, "budget used up")


@pytest.mark.parametrize(
    ("decision", "decided", "reason", "steps", "end"),
    [
        ("approve", "approved", "The board agrees.", f"completed after {STEPS} of {STEPS} steps", "finished"),
        ("reject", "rejected", "The budget of the year is spent.", "completed after", "budget used up"),
    ],
)
def test_script_that_requests_a_higher_limit_waits_for_the_decision(
    server: LiveServer, decision: str, decided: str, reason: str, steps: str, end: str
) -> None:
    script = Script(server, new_budget(server, decision), "higher_limit")
    thread = script.start("requested prp_")
    assert f"of {script.budget} (open)" in script.output
    with server.client("privacy_officer") as api:
        for proposal in re.findall(r"requested (prp_\w+)", script.output):
            assert api.post(f"/v1/proposals/{proposal}/{decision}", json={"reason": reason}).is_success
    thread.join(120)
    assert f"{decided}: {reason}" in script.said
    assert script.said[-1].startswith(steps)
    assert reason in text_of(check_end(script, end))


def test_author_requests_a_higher_limit_on_the_page_and_the_script_goes_on(server: LiveServer, enter: Enter) -> None:
    script = Script(server, new_budget(server, "waiting"), "wait")
    thread = script.start(" refused: ")
    page = enter("trainer", f"/runs/{read_run(script)['id']}")
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
    card = officer.get_by_role("article", name=script.budget)
    expect(card).to_contain_text("All epochs, as planned.")
    card.get_by_role("button", name="Approve").click()
    dialog = officer.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("The board agrees.")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(officer.locator("#message")).to_have_text("Approved.")
    expect(requests).to_contain_text("approved")
    thread.join(120)
    assert script.said[-1] == f"completed after {STEPS} of {STEPS} steps"
    check_end(script, "finished")
