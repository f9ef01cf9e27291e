"""Accounts are renamed, described and archived on their pages."""

import re

from playwright.sync_api import BrowserContext, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.sample_hospital import Hospital


def test_a_budget_is_renamed_described_and_archived(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn, hospital: Hospital
) -> None:
    page = context.new_page()  # whose console tells of a refusal
    sign_in(page, changing, "privacy_officer")
    budget = hospital.ids["mimic/readmission/sweep"]
    page.goto(f"{changing.url}/accounts/{budget}")
    summary = page.get_by_text("Rename, edit details or archive")
    summary.click()
    page.get_by_label("Display name").fill("Sweep of widths")
    page.get_by_label("Owner").fill("icu-team@hospital.example")
    page.get_by_label("Labels").fill("team: icu\nstudy: 2026-3")
    page.get_by_label("Links").fill("MLflow runs ftp://mlflow.example")
    page.get_by_role("button", name="Save the details").click()
    expect(page.get_by_label("Links")).to_have_accessible_description(re.compile("write an http or https address"))
    expect(page.get_by_label("Links")).to_be_focused()
    page.get_by_label("Links").fill("MLflow runs https://mlflow.example/runs/1")
    page.get_by_role("button", name="Save the details").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Sweep of widths")
    about = page.locator("#about")
    expect(about).to_contain_text("team: icu")
    expect(about.get_by_role("link", name="MLflow runs")).to_have_attribute("href", "https://mlflow.example/runs/1")

    summary.click()
    page.get_by_label("Labels").fill("study: 2026-3")
    page.get_by_label("Display name").fill("")
    page.get_by_role("button", name="Save the details").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("sweep")
    expect(about).not_to_contain_text("team: icu")
    expect(about).to_contain_text("study: 2026-3")

    summary.click()
    page.get_by_role("button", name="Archive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("The study is over.")
    dialog.get_by_role("button", name="Archive").click()
    expect(about).to_contain_text("hidden from lists, and read-only")
    for form in ("#open-budget", "#open-blocks", "#register-run"):
        expect(page.locator(form)).to_have_count(0)
    summary.click()
    page.get_by_role("button", name="Unarchive").click()
    dialog.get_by_label("Reason").fill("It goes on.")
    dialog.get_by_role("button", name="Unarchive").click()
    expect(page).to_have_url(re.compile(r"/approvals$"))
    expect(page.get_by_role("main")).to_contain_text("would be unarchived: what it has left may be spent again")


def test_nothing_is_created_under_an_archived_account(page: Page, changing: LiveServer, sign_in: SignIn) -> None:
    limit = {"epsilon": 1.0, "delta": 1e-6}
    with changing.client("admin") as api:
        terms = {"name": "over", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one", "limit": limit}
        over = api.post("/v1/populations", json=terms).json()["id"]
        apart = {"composition": "parallel", "attestation": "Each record is of one month."}
        months = api.post("/v1/budgets", json={"name": "months", "parent": over, "limit": limit} | apart).json()["id"]
        team = api.post("/v1/budgets", json={"name": "team", "parent": over, "limit": limit}).json()["id"]
        sign_in(page, changing, "admin")
        forms = {over: {"open-budget"}, months: {"open-budget", "open-blocks"}, team: {"open-budget", "register-run"}}
        for archived in (False, True):
            if archived:
                assert api.post(f"/v1/accounts/{over}/archive", json={"reason": "It is over."}).status_code == 200
            for account, offered in forms.items():
                page.goto(f"{changing.url}/accounts/{account}")
                there = {
                    form for form in ("open-budget", "open-blocks", "register-run") if page.locator(f"#{form}").count()
                }
                assert there == (set() if archived else offered)
                expect(page.locator(".notice")).to_have_count(int(archived and account != over))
        page.goto(f"{changing.url}/experiments")
        assert not page.locator("#accounts option[value^=over]").count()
        assert page.locator("#accounts option[value=mimic]").count()


def test_who_may_not_change_an_account_is_offered_no_form(
    context: BrowserContext, changing: LiveServer, sign_in: SignIn, hospital: Hospital
) -> None:
    page = context.new_page()
    sign_in(page, changing, "trainer")
    page.goto(f"{changing.url}/accounts/{hospital.ids['mimic']}")
    expect(page.locator("#edit-details")).to_have_count(0)
    page.goto(f"{changing.url}/runs/{hospital.refused}")
    expect(page.locator("#edit-details")).to_have_count(1)
