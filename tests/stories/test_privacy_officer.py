"""A morning of a privacy officer in a browser: decide, find what blocks, pause, lower a limit, and verify.

What the pages show is compared with what the API says.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Locator, Page, expect

from app.dashboard.formatting import epsilon, percent
from tests.conftest import LiveServer
from tests.dashboard.conftest import Enter
from tests.dashboard.sample_hospital import dp_sgd

DELTA = 1e-6
OWNER = "Dr. Meera Nair, extension 2207"
REASON = "The extension was agreed on 20 November."
ZONE = "America/New_York"
"""Of the officer's browser, west of UTC: a day that is shifted by it would be the one before."""


@dataclass
class Office:
    """The officer's browser, and the service as its API shows it to them."""

    url: str
    page: Page
    api: httpx2.Client
    ids: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 - JSON
        reply = self.api.get(f"/v1/{path}", params={name: str(value) for name, value in query.items()})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def open(self, name: str) -> None:
        """Open the page of an account or a run of the organisation."""
        known = self.ids[name]
        self.page.goto(f"{self.url}/{'runs' if known.startswith('run_') else 'accounts'}/{known}")

    def confirm(self, button: str, reason: str = "") -> str:
        """Answer the dialog that is open with the button; return what it said."""
        dialog = self.page.get_by_role("dialog")
        said = dialog.inner_text()
        if reason:
            dialog.get_by_label("Reason").fill(reason)
        dialog.get_by_role("button", name=button).click()
        expect(self.page.get_by_role("dialog")).to_have_count(0)
        return said

    def line(self, name: str) -> Locator:
        """The line of an account on the overview."""
        return self.page.locator(f'.account-status:has(.name a[href="/accounts/{self.ids[name]}"])')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("office")) as server:
        yield server


@pytest.fixture
def office(enter: Enter, server: LiveServer) -> Iterator[Office]:
    """An organisation in the middle of its work, and the officer who has just signed in."""
    ids = _organisation(server)
    page = enter("privacy_officer", timezone_id=ZONE)
    with server.client("privacy_officer") as api:
        yield Office(server.url, page, api, ids)


def _organisation(server: LiveServer) -> dict[str, str]:
    """Claims that are nearly used up, so that a budget under them is blocked, and two teams with runs of one name."""
    ids: dict[str, str] = {}
    with server.client("admin") as admin, server.client("trainer") as trainer, server.client("planner") as planner:

        def made(api: httpx2.Client, collection: str, path: str, **terms: object) -> str:
            above, _, name = path.rpartition("/")
            place = {"budgets": {"parent": above}, "runs": {"budget": above}}.get(collection, {})
            reply = api.post(f"/v1/{collection}", json={"name": name} | place | terms)
            assert reply.status_code == 201, reply.text
            ids.setdefault(path, str(reply.json()["id"]))
            return str(reply.json()["id"])

        people = {"privacy_unit": "insured person", "neighboring_relation": "add_or_remove_one", "size": 90_000}
        for population, epsilon, owner in (("insurance-claims", 1.0, OWNER), ("mimic", 8.0, "Cardiology")):
            made(admin, "populations", population, limit={"epsilon": epsilon, "delta": DELTA}, owner=owner, **people)
        for budget, epsilon in (("insurance-claims/fraud", 1.0), ("insurance-claims/pricing", 0.6), ("mimic/icu", 3.0)):
            made(admin, "budgets", budget, limit={"epsilon": epsilon, "delta": DELTA})
        event = dp_sgd(2.0, 0.005)
        fraud = made(trainer, "runs", "insurance-claims/fraud/detector", event=event)
        asked = {"count": 1_000_000, "on_exceed": "truncate"}
        assert trainer.post(f"/v1/runs/{fraud}/steps", json=asked).status_code == 200
        assert made(trainer, "runs", "mimic/icu/mortality", event=event)
        ids["second"] = made(trainer, "runs", "mimic/icu/mortality", event=event)
        for run, steps in ((ids["mimic/icu/mortality"], 900), (ids["second"], 400)):
            assert trainer.post(f"/v1/runs/{run}/steps", json={"count": steps}).status_code == 200
        raised = {"limit": {"epsilon": 4.0, "delta": DELTA}, "reason": REASON}
        proposed = planner.post(f"/v1/accounts/{ids['mimic/icu']}/limit", json=raised, headers={"If-Match": "*"})
        assert proposed.status_code == 201, proposed.text
        ids["proposal"] = str(proposed.json()["id"])
    return ids


def test_privacy_officer_decides_finds_pauses_lowers_and_verifies(office: Office) -> None:
    for act in (_decide_a_proposal, _find_the_blocked, _pause_one_of_two_runs, _lower_a_limit, _verify_the_audit_log):
        act(office)


def _decide_a_proposal(office: Office) -> None:
    page, budget = office.page, office.get(f"budgets/{office.ids['mimic/icu']}")
    waiting = office.get("proposals", status="open")["items"]
    assert [each["id"] for each in waiting] == [office.ids["proposal"]]
    expect(page.locator("#nav-approvals .badge")).to_have_text(re.compile(r"^1\b"))
    expect(page.locator("#approvals-waiting")).to_contain_text("1 proposal waits for your decision.")
    page.locator("#approvals-waiting").get_by_role("link").click()
    card = page.get_by_role("article", name="mimic/icu")
    expect(card).to_contain_text(REASON)
    expect(card).to_contain_text(re.compile(r"Proposed by key \S+ \(planner\), \d+ \w+ \d{4}, \d\d:\d\d E[SD]T"))
    row = card.get_by_role("row").filter(has=page.get_by_role("link", name="mimic/icu"))
    cells = row.get_by_role("cell")
    expect(cells.nth(0)).to_contain_text(re.compile(r"3 → becomes 4 at δ 1e-6"))
    expect(cells.nth(1)).to_have_text(re.compile(rf"^{percent(budget['used'])} → becomes \d+\.\d\s%$"))
    expect(cells.nth(2)).to_have_text(re.compile(rf"^{percent(1 - budget['used'])} → becomes \d+\.\d\s%$"))
    card.get_by_role("button", name="Approve").click()
    said = office.confirm("Approve", "The steering committee agreed.")
    assert "The limit of mimic/icu becomes epsilon 4 at delta 1e-6, immediately." in said
    expect(page.locator("#waiting")).to_contain_text("Nothing to approve")
    expect(page.locator("#decided")).to_contain_text("The steering committee agreed.")
    expect(page.locator("#nav-approvals .badge")).to_have_count(0)
    assert office.get(f"budgets/{office.ids['mimic/icu']}")["limit"]["epsilon"] == 4.0
    assert office.get(f"proposals/{office.ids['proposal']}")["status"] == "approved"


def _find_the_blocked(office: Office) -> None:
    page, pricing = office.page, office.get(f"budgets/{office.ids['insurance-claims/pricing']}")
    available = pricing["available"]
    assert (pricing["epsilon"], available["account_path"]) == (0.0, "insurance-claims")
    assert available["share"] < 0.02, "the population is nearly used up"
    page.get_by_role("link", name="Overview").click()
    line = office.line("insurance-claims/pricing")
    expect(line).to_contain_text(f"{percent(0)} used, {percent(available['share'])} left (fullest: insurance-claims)")
    expect(line.locator(".level")).to_have_text("blocked")
    expect(office.line("insurance-claims").locator(".name")).to_contain_text(OWNER)
    line.get_by_role("link", name="insurance-claims").last.click()
    expect(page).to_have_url(f"{office.url}/accounts/{office.ids['insurance-claims']}")
    expect(page.locator("#about")).to_contain_text(OWNER)


def _pause_one_of_two_runs(office: Office) -> None:
    page = office.page
    office.open("second")
    expect(page.get_by_role("heading", level=1)).to_have_text("mortality #2")
    page.get_by_role("button", name="Pause").click()
    assert "mimic/icu/mortality #2 takes no steps until it is resumed." in office.confirm("Pause")
    expect(page.locator("#facts")).to_contain_text("paused")
    assert office.get(f"runs/{office.ids['second']}")["status"] == "paused"
    assert office.get(f"runs/{office.ids['mimic/icu/mortality']}")["status"] == "active"


def _lower_a_limit(office: Office) -> None:
    page, budget = office.page, office.ids["mimic/icu"]
    office.open("mimic/icu")
    form = page.locator("form[data-limit]")
    form.get_by_label("Epsilon").fill("3.5")
    expect(form.locator("[data-change]")).to_contain_text("Epsilon falls from 4 to 3.5, delta stays 1e-6.")
    form.get_by_label("Reason").fill("The extension was too large.")
    form.get_by_role("button", name="Lower the limit").click()
    said = office.confirm("Lower the limit")
    assert "mimic/icu: Epsilon falls from 4 to 3.5, delta stays 1e-6. This lowers the limit" in said
    expect(page.locator("#limit-title ~ p").first).to_contain_text("is epsilon 3.5 at delta 1e-6")
    after = office.get(f"budgets/{budget}")
    assert after["limit"] == {"epsilon": 3.5, "delta": DELTA}
    facts = page.locator("#facts")
    expect(facts).to_contain_text("ε 3.5")
    for said in (epsilon(after["epsilon"]), percent(after["used"]), percent(after["available"]["share"])):
        expect(facts).to_contain_text(said)


def _verify_the_audit_log(office: Office) -> None:
    page = office.page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    log = page.locator("#acts")
    for sentence in (
        "changed the limit of mimic/icu from epsilon 4 at delta 1e-6 to epsilon 3.5 at delta 1e-6",
        "“The extension was too large.”",
        "paused the run mimic/icu/mortality #2",
    ):
        expect(log).to_contain_text(sentence)
    shown = [int(each) for each in log.locator("td.number").all_inner_texts()]
    assert shown == [each["position"] for each in office.get("audit-events", limit=len(shown))["items"]]
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator("#health")).to_contain_text("consistent")
    [newest] = office.get("verifications", limit=1)["items"]
    assert newest["discrepancies"] == []
    facts = page.locator("#health dl.facts > div").filter(has_text="Last verification")
    expect(facts).to_contain_text(f"{newest['decisions']} decisions, {newest['audit_events']} audit entries")
    expect(facts).to_contain_text("(privacy officer)")
