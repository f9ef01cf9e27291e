"""Sweeps are created, charged and found without a line of curl."""

import re

from playwright.sync_api import BrowserContext, expect

from tests.conftest import Ledger, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import visit, words
from tests.login_helpers import signed_in


def test_a_sweep_is_charged_as_a_whole_and_its_number_of_trials_is_shown_once(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn
) -> None:
    page = context.new_page()  # whose console tells of a refusal
    sign_in(page, changing, "admin")
    page.goto(f"{changing.url}/experiments")
    page.get_by_label("Name").fill("widths")
    page.get_by_label("Budget").fill("mimic/nowhere")
    page.get_by_label("Charge").select_option("the whole sweep; only the best may be looked at")
    page.get_by_label("Noise multiplier").fill("4")
    page.get_by_label("Sampling probability").fill("0.001")
    page.get_by_label("Steps").fill("10")
    page.get_by_label("Expected number of trials").fill("2")
    create = page.get_by_role("button", name="Create the experiment")
    create.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Budget")).to_have_accessible_description(re.compile("mimic/nowhere"))
    page.get_by_label("Budget").fill("mimic/readmission/sweep")
    create.click()
    dialog.get_by_role("button", name="Create").click()
    assert int(page.get_by_label("Number of trials to run").input_value()) >= 1
    page.get_by_role("button", name="I have saved it").click()
    row = page.get_by_role("row", name="widths")
    expect(row).to_contain_text("as a whole")
    expect(row.get_by_role("button", name="Charge")).to_have_count(0)


def test_experiments_are_found_by_account_and_charged_by_trainers_only(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    body = {"name": "widths", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    assert ledger.post("/v1/experiments", body, "trainer").status_code == 201
    found = visit(ledger, "/experiments?account=mimic", signed_in(ledger, "privacy_officer"))
    assert "widths mimic/icu-team each run 0" in words(found)
    assert "the whole sweep" not in found.text
    assert "There is no population or budget" in words(visit(ledger, "/experiments?account=x", signed_in(ledger)))
    assert "Create an experiment" not in words(visit(ledger, "/experiments", signed_in(ledger)))
