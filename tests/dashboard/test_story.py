"""A day of a privacy officer: exhausted budgets, a refused run, what would fit, a higher limit, progress."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from app.demo.training import load_patients, step_event, train_until_refused
from epsilon_ledger import LedgerClient, Run, StepAuthorization
from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.sample_hospital import Hospital

Enter = Callable[[str], Page]
Seen = tuple[int, str]


@pytest.fixture
def enter(browser: Browser, changing: LiveServer, sign_in: SignIn) -> Iterator[Enter]:
    """Sign in as a role, each in a browser of its own."""
    contexts: list[BrowserContext] = []

    def enter(role: str) -> Page:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        sign_in(page, changing, role)
        return page

    yield enter
    for context in contexts:
        context.close()


def test_from_the_nearly_exhausted_budget_to_one_that_lasts(
    enter: Enter, changing: LiveServer, hospital: Hospital
) -> None:
    planner = enter("planner")

    # Which population is nearly exhausted? The first one; and under it, who is it?
    first = planner.locator(".population").first
    expect(first.get_by_role("link").first).to_have_text("stroke-registry")
    nearly_exhausted = first.locator(".tree .account-status", has_text="nearly exhausted")
    nearly_exhausted.get_by_role("link", name="outcome-models").click()
    expect(planner.get_by_role("heading", level=1)).to_contain_text("outcome-models")
    expect(planner.get_by_role("region", name="Table of spending by child")).to_contain_text("transformer")

    # Why was its run refused?
    refused = planner.get_by_role("region", name="Latest refusals here")
    fourteen = refused.get_by_role("row").filter(has=planner.get_by_role("cell", name="14", exact=True))
    fourteen.first.get_by_role("link").first.click()
    expect(planner).to_have_url(re.compile(rf"/decisions/{hospital.refused}/\d+$"))
    expect(planner.locator("main")).to_contain_text("stroke-registry/outcome-models")
    expect(planner.locator("main")).to_contain_text(
        "With a noise multiplier of 1.23, all 14 steps that the training still needs would fit."
    )

    # Would another run fit, and which one would?
    planner.goto(f"{changing.url}/accounts/{hospital.ids['stroke-registry/outcome-models']}")
    planner.get_by_label("Steps", exact=True).fill("2000")
    answer = planner.locator("#answer")
    expect(answer).to_contain_text("It does not fit")
    fits = re.compile(r"2.000 steps fit with a noise multiplier of ([\d.]+) or more")
    expect(answer).to_contain_text(fits)
    found = fits.search(answer.inner_text())
    assert found is not None
    planner.get_by_label("Noise multiplier").fill(found[1])
    expect(answer).to_contain_text("It fits")

    # More is needed all the same: it was proposed already, and another person decides.
    officer = enter("privacy_officer")
    officer.get_by_role("link", name="Approvals").click()
    waiting = officer.get_by_role("article", name="stroke-registry/outcome-models")
    expect(waiting).to_contain_text("The ethics board agreed on 12 November.")
    waiting.get_by_role("button", name="Approve").click()
    dialog = officer.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("As the board has agreed.")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(officer.locator("#message")).to_have_text("Approved.")

    # Whoever looks sees it without a click: there is room now, up to what the population has left.
    expect(planner.locator("#facts")).to_contain_text("of 3.5")
    audit = enter("auditor")
    audit.get_by_role("link", name="Audit").click()
    expect(audit.locator("main")).to_contain_text("As the board has agreed.")


def _once(page: Page, look: Callable[[], Seen], enough: Callable[[Seen], bool]) -> Seen:
    """What is seen as soon as it is enough; looked for from outside, since pages let nobody evaluate words in them."""
    for _ in range(300):
        seen = look()
        if enough(seen):
            return seen
        page.wait_for_timeout(100)
    raise AssertionError(f"after 30 seconds: {seen!r:.200}")


def _train(run: Run, stop: threading.Event) -> None:
    """The demo's training, until the test has seen enough; not faster than an eye can follow."""

    def watched(authorization: StepAuthorization) -> None:
        del authorization
        if stop.wait(0.02):
            raise InterruptedError

    with suppress(InterruptedError):
        train_until_refused(run, load_patients(), np.random.default_rng(), watched)


def test_a_curve_grows_while_the_demo_s_trainer_trains(enter: Enter, changing: LiveServer) -> None:
    with LedgerClient(changing.url, changing.key("trainer")) as client:
        run = client.create_run("demo", budget="mimic/readmission", event=step_event())
        page = enter("viewer")
        page.goto(f"{changing.url}/runs/{run.id}")
        steps = page.locator("#facts dl > div", has_text="Steps").first.locator("dd")
        expect(steps).to_contain_text("0")
        stop = threading.Event()
        trainer = threading.Thread(target=_train, args=(run, stop))
        trainer.start()

        def drawn() -> tuple[int, str]:
            """The last step of the curve, and the picture of it."""
            body = page.evaluate(
                "JSON.parse(document.querySelector('#curve-data script').textContent)"
                ".series.find((each) => each.role === 'spent')?.points.at(-1)[0] ?? 0"
            )
            return int(body), str(page.evaluate("document.querySelector('#curve canvas').toDataURL()"))

        seen, picture = _once(page, drawn, lambda now: now[0] > 0)
        later, _ = _once(page, drawn, lambda now: now[0] > seen + 5)
        page.wait_for_timeout(300)  # it is drawn after the numbers have come
        assert drawn()[0] >= later
        _, another = drawn()
        assert another != picture
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
        stop.set()
        trainer.join(60)
