"""Somebody opens a population and a budget without a line of curl."""

import re

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.conftest import SAMPLED, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned


def _confirm(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Create").click()


def test_a_population_and_a_budget_are_opened_by_hand_and_spent_from(
    page: Page, changing: LiveServer, sign_in: SignIn
) -> None:
    sign_in(page, changing, "privacy_officer")
    page.get_by_text("Create a population", exact=True).click()
    page.get_by_label("Name").fill("sleep-study")
    page.get_by_label("Who is protected").fill("sleeper")
    page.get_by_label("Neighboring relation").select_option("Replace with a null record")
    page.get_by_label("Size").fill("12000")
    page.get_by_label("Limit: epsilon").fill("6")
    page.get_by_label("Limit: delta").fill("1e-6")
    page.get_by_role("button", name="Create the population").click()
    expect(page.get_by_role("dialog")).to_contain_text("Creates sleep-study with epsilon 6 at delta 1e-6")
    _confirm(page)
    page.wait_for_url(f"{changing.url}/accounts/pop_*")
    expect(page.locator("#message")).to_have_text("Population sleep-study created.")
    expect(page.get_by_role("heading", level=1)).to_contain_text("sleep-study")
    expect(page.locator("#facts")).to_contain_text("sleeper")
    expect(page.locator("#facts")).to_contain_text("replace with a null record")

    page.get_by_text("Create a child budget", exact=True).click()
    form = page.locator("#open-budget")
    form.get_by_label("Name").fill("apnoea")
    form.get_by_label("Limit: epsilon").fill("2")
    form.get_by_label("Limit: delta").fill("1e-6")
    form.get_by_label("Closes (UTC)").fill("2099-01-01T00:00")
    form.get_by_role("button", name="Create the budget").click()
    expect(page.get_by_role("dialog")).to_contain_text("Creates sleep-study/apnoea with epsilon 2")
    _confirm(page)
    page.wait_for_url(f"{changing.url}/accounts/bud_*")
    expect(page.locator("#facts")).to_contain_text("Closes 1 Jan 2099, 00:00 UTC")

    with changing.client("admin") as api:
        run = api.post("/v1/runs", json={"name": "cnn", "budget": "sleep-study/apnoea", "event": SAMPLED}).json()["id"]
        for step in range(3):
            assert api.post(f"/v1/runs/{run}/steps", json={"first_step": step}).status_code == 200
        budget = api.get(f"/v1/budgets/{page.url.rpartition('/')[2]}").json()
    assert budget["limit"] == {"epsilon": 2.0, "delta": 1e-6}
    page.reload()
    expect(page.locator("#curve canvas[data-drawn]")).to_be_visible()
    labels = page.evaluate(
        "Chart.getChart(document.querySelector('#curve canvas')).scales.x.ticks.map((at) => at.label)"
    )
    assert len(labels) >= 2, "an axis of moments that are seconds apart has moments on it"


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_opened(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn
) -> None:
    page = context.new_page()  # whose console tells of the refusal
    sign_in(page, changing, "budget_admin")
    page.get_by_text("Create a population", exact=True).click()
    page.get_by_label("Name").fill("a/b")
    page.get_by_label("Who is protected").fill("patient")
    page.get_by_label("Limit: epsilon").fill("1")
    page.get_by_label("Limit: delta").fill("1e-6")
    page.get_by_role("button", name="Create the population").click()
    _confirm(page)
    expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("dialog")).to_have_count(0)
    with changing.client("viewer") as api:
        assert "a/b" not in [each["name"] for each in api.get("/v1/populations").json()["items"]]


@pytest.mark.parametrize("role", thinned(["viewer", "trainer", "planner", "auditor"], 2))
def test_who_opens_nothing_is_offered_nothing(page: Page, changing: LiveServer, sign_in: SignIn, role: str) -> None:
    sign_in(page, changing, role)
    expect(page.locator("#trees")).to_be_visible()
    expect(page.locator("#open-population")).to_have_count(0)
    page.get_by_role("link", name="mimic").first.click()
    expect(page.get_by_role("heading", name="Child budgets")).to_be_visible()
    expect(page.locator("#open-budget")).to_have_count(0)


def _fill_population(page: Page, name: str, delta: str = "1e-6") -> Locator:
    page.get_by_text("Create a population", exact=True).click()
    form = page.locator("#open-population")
    form.get_by_label("Name").fill(name)
    form.get_by_label("Who is protected").fill("visitor")
    form.get_by_label("Size").fill("5000")
    form.get_by_label("Limit: epsilon").fill("4")
    form.get_by_label("Limit: delta").fill(delta)
    return form


def test_blocks_open_by_themselves_until_the_schedule_is_removed(
    page: Page, changing: LiveServer, sign_in: SignIn
) -> None:
    with changing.client("admin") as api:
        people = {"privacy_unit": "visitor", "neighboring_relation": "add_or_remove_one"}
        parts = {"composition": "parallel", "attestation": "Each visit has one date."}
        body = {"name": "visits", "limit": {"epsilon": 4.0, "delta": 1e-6}} | people | parts
        top = api.post("/v1/populations", json=body).json()["id"]
    sign_in(page, changing, "privacy_officer")
    page.goto(f"{changing.url}/accounts/{top}")
    page.get_by_text("Open data blocks by themselves").click()
    form = page.locator("#schedule-blocks")
    form.get_by_label("First day").fill("2999-03-15")
    form.get_by_label("Limit of each: epsilon").fill("1")
    form.get_by_label("Limit of each: delta").fill("1e-7")
    form.get_by_label("Names begin with").fill("v-")
    form.get_by_label("Reason, recorded in the audit log").fill("The board has met.")
    form.get_by_role("button", name="Set the block schedule").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("A budget under visits opens for each month of data from the one with 2999-03-15")
    expect(dialog).to_contain_text("with epsilon 1 at delta 1e-7")
    dialog.get_by_role("button", name="Set the schedule").click()
    expect(page.locator("#message")).to_have_text("Block schedule set.")
    expect(page.locator("#facts")).to_contain_text("A data block for each month opens by itself when it begins")

    page.get_by_text("Change or remove the block schedule").click()
    expect(form.get_by_label("Names begin with")).to_have_value("v-")
    form.get_by_label("Reason for removing it").fill("The study ends & is over.")
    form.get_by_role("button", name="Remove the block schedule").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(page.locator("#message")).to_have_text("Block schedule removed.")
    expect(page.locator("#facts")).not_to_contain_text("opens by itself")
    with changing.client("admin") as api:
        [newest] = api.get("/v1/audit-events?action=block_schedule.*&limit=1").json()["items"]
    assert (newest["action"], newest["reason"]) == ("block_schedule.removed", "The study ends & is over.")


def test_monthly_data_is_opened_as_disjoint_blocks(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn
) -> None:
    page = context.new_page()  # whose console tells of a refusal
    sign_in(page, changing, "privacy_officer")
    form = _fill_population(page, "web-logs")
    expect(form.get_by_label("Attestation")).to_be_hidden()
    form.get_by_label("Composition of children").select_option("parallel: disjoint parts")
    form.get_by_label("Attestation").fill("Each visit has one date, fixed before anything was computed.")
    form.get_by_label("Parts per unit").fill("3")
    expect(form.get_by_label("A replacement")).to_be_hidden()
    form.get_by_label("Neighboring relation").select_option("Replace one")
    form.get_by_label("A replacement").select_option("stays in the part of its unit")
    form.get_by_role("button", name="Create the population").click()
    _confirm(page)
    page.wait_for_url(f"{changing.url}/accounts/pop_*")
    expect(page.locator("#facts")).to_contain_text("one visitor is in at most 3 of them: Each visit has one date")

    page.get_by_text("Create data blocks by calendar").click()
    blocks = page.locator("#open-blocks")
    blocks.get_by_label("First day").fill("2026-01-01")
    blocks.get_by_label("Number of blocks").fill("3")
    blocks.get_by_label("Limit of each: epsilon").fill("1")
    blocks.get_by_label("Limit of each: delta").fill("1e-7")
    blocks.get_by_role("button", name="Create the data blocks").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "Creates 3 budgets under web-logs, one for the data of each month"
    )
    expect(page.get_by_role("dialog")).to_contain_text("with epsilon 1 at delta 1e-7")
    _confirm(page)
    expect(page.locator("#message")).to_have_text("Data blocks created.")
    expect(page.locator("#children")).to_contain_text("2026-03")

    page.get_by_text("Create a child budget", exact=True).click()
    form = page.locator("#open-budget")
    form.get_by_label("Name").fill("april")
    form.get_by_label("Limit: epsilon").fill("1")
    form.get_by_label("Limit: delta").fill("1e-7")
    form.get_by_label("Part", exact=True).select_option("the data of a period")
    form.get_by_label("Data from").fill("2026-03-15")
    form.get_by_label("Data before").fill("2026-05-01")
    form.get_by_role("button", name="Create the budget").click()
    _confirm(page)
    _expect_error(form.get_by_label("Data from"), "The block overlaps web-logs/2026-03")
    form.get_by_label("Data from").fill("2026-04-01")
    form.get_by_role("button", name="Create the budget").click()
    _confirm(page)
    page.wait_for_url(f"{changing.url}/accounts/bud_*")
    expect(page.locator("#facts")).to_contain_text("Covers the data of 2026-04-01 to 2026-04-30 (UTC dates).")


def _expect_error(field: Locator, words: str) -> None:
    """An error that is read with its field, which has the focus."""
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(re.compile(re.escape(words)))
    expect(field).to_be_focused()


def test_errors_about_a_limit_or_a_name_stand_at_their_field(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn
) -> None:
    page = context.new_page()  # whose console tells of the refusals
    sign_in(page, changing, "privacy_officer")
    form = _fill_population(page, "Mimic", delta="0.01")
    button = form.get_by_role("button", name="Create the population")
    for field, words, right in (
        ("Limit: delta", "is not below 1/5000", "1e-6"),
        ("Name", "differs from 'mimic', which exists", "mammograms"),
    ):
        button.click()
        _confirm(page)
        expect(page.get_by_role("dialog")).to_have_count(0)
        _expect_error(form.get_by_label(field), words)
        form.get_by_label(field).fill(right)
    form.get_by_label("Plan", exact=True).select_option("events as JSON")
    form.get_by_label("List of events").fill('[{"event": {"type": "gaussian", "noise_multiplier": -1}}]')
    button.click()
    _confirm(page)
    _expect_error(form.get_by_label("List of events"), "must be at least 0.001")
    form.get_by_label("Plan", exact=True).select_option("DP-SGD steps")
    form.get_by_label("Noise multiplier").fill("1.1")
    form.get_by_label("Sampling probability").fill("0")
    form.get_by_label("Steps", exact=True).fill("2000")
    button.click()
    _confirm(page)
    _expect_error(form.get_by_label("Sampling probability"), "greater than 0")
    form.get_by_label("Sampling probability").fill("0.01")
    button.click()
    _confirm(page)
    page.wait_for_url(f"{changing.url}/accounts/pop_*")
    expect(page.locator("#plan")).to_contain_text("Poisson sampling with probability 0.01")


def test_a_run_is_registered_by_hand(page: Page, changing: LiveServer, sign_in: SignIn, hospital: Hospital) -> None:
    sign_in(page, changing, "privacy_officer")
    page.goto(f"{changing.url}/accounts/{hospital.ids['mimic/readmission/sweep']}")
    page.get_by_text("Register a run", exact=True).click()
    form = page.locator("#register-run")
    form.get_by_label("Name").fill("by-hand")
    form.get_by_label("Noise multiplier").first.fill("1.3")
    form.get_by_label("Sampling probability").first.fill("0.01")
    form.get_by_label("Own limit: epsilon").fill("0.5")
    form.get_by_label("Own limit: delta").fill("1e-7")
    form.get_by_role("button", name="Register the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Register").click()
    page.wait_for_url(f"{changing.url}/runs/run_*")
    expect(page.locator("#facts")).to_contain_text("at δ 1e-7, by the limit of the run itself")
    expect(page.locator("#facts")).to_contain_text("noise multiplier 1.3, Poisson sampling with probability 0.01")
