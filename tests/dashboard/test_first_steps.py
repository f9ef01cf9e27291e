"""The first steps of an organisation: shown to those who may take them, until a run has taken a step."""

from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import visitor


def test_guide_is_shown_to_roles_that_may_create(ledger: Ledger) -> None:
    for role, shown in (("viewer", False), ("trainer", False), ("budget_admin", True), ("admin", True)):
        assert ("First steps" in visitor(ledger, role).open("/").words) is shown, role


def test_registered_run_is_waited_for(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget('o"neil <b>')
    person = visitor(ledger, "admin")
    lines = [each.text or "" for each in person.open("/").root.iter("pre") if "data-copy" in each.attrib]
    assert 'budget="mimic/o\\u0022neil' in lines[-1].replace('\\"', "\\u0022")
    run = ledger.run('mimic/o"neil <b>', event=SAMPLED)
    page = person.open("/")
    assert "is registered. Waiting for its first step" in page.words
    assert not any("aria-current" in each.attrib for each in page.root.iter("li"))
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    assert "has taken 2 steps" in person.open("/").words
    ledger.run('mimic/o"neil <b>', name="second")
    assert person.open("/").part("first") == ""
