"""Somebody opens a population and a budget without a line of curl."""

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.conftest import SAMPLED, LiveServer
from tests.dashboard.conftest import SignIn


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
    expect(page.locator("#facts")).to_contain_text("Closes 2099-01-01 00:00")

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


@pytest.mark.parametrize("role", ["viewer", "trainer", "planner", "auditor"])
def test_who_opens_nothing_is_offered_nothing(page: Page, changing: LiveServer, sign_in: SignIn, role: str) -> None:
    sign_in(page, changing, role)
    expect(page.locator("#trees")).to_be_visible()
    expect(page.locator("#open-population")).to_have_count(0)
    page.get_by_role("link", name="mimic").first.click()
    expect(page.get_by_role("heading", name="Child budgets")).to_be_visible()
    expect(page.locator("#open-budget")).to_have_count(0)
