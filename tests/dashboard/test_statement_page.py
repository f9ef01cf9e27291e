"""A statement in a browser: styled by what its own policy names, and by nothing else."""

import pytest
from playwright.sync_api import Page

from tests.conftest import Ledger
from tests.dashboard.page_actions import COLOURS, faults_of


@pytest.mark.parametrize("what", ["runs", "populations"])
def test_a_statement_is_styled_under_its_own_policy_and_everybody_can_read_it(
    ledger: Ledger, page: Page, what: str
) -> None:
    population = str(ledger.population()["id"])
    ledger.budget()
    run = ledger.run()
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 10}, "trainer").is_success
    reply = ledger.get(f"/v1/{what}/{run if what == 'runs' else population}/statement.html")
    address = "http://ledger.example/statement.html"
    page.route(address, lambda route: route.fulfill(body=reply.text, headers=dict(reply.headers)))
    for scheme in COLOURS:
        page.emulate_media(color_scheme=scheme)
        page.goto(address)
        assert page.evaluate("getComputedStyle(document.body).maxWidth") == "896px"
        assert faults_of(page) == []
    assert "script-src" not in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
