"""What can be done to a run: in each of its states what is shown is what the API takes."""

import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from app.dashboard.page_context import templates
from app.ledger.permissions import PERMISSIONS, Permission, Role
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import get_run
from tests.conftest import SAMPLED, Ledger

PART = templates().from_string(
    '{% from "run_actions.html" import run_actions with context %}{{ run_actions(record, page) }}'
)
STATES = {
    "active": (None, None),
    "paused": ("pause", None),
    "overdrawn": ("steps", {"count": 10**6, "mode": "report"}),
    "reserving": ("reservations", {"events": [{"event": SAMPLED, "count": 5}]}),
    "completed": ("complete", None),
    "aborted": ("abort", None),
}
"""What brings a new run into a state: a call, and its body."""


def accounts(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()


FURNISHED = {"ledger": accounts}


def shown(ledger: Ledger, run: str, role: Role) -> tuple[list[str], str]:
    """The calls that the page of a run offers, and their text."""
    now = datetime.now(UTC)
    caller = authenticate(ledger.database, f"Bearer {ledger.keys['hospital', role]}", now)
    record = get_run(RequestContext(ledger.database, caller, now), run)
    text = PART.render(record=record, page=SimpleNamespace(has_permission=lambda needed: needed in PERMISSIONS[role]))
    return re.findall(rf'data-call="POST /v1/runs/{run}/([^"]+)"', text), text


@pytest.mark.parametrize(
    ("state", "actions"),
    [
        ("active", ["pause", "complete", "abort"]),
        ("paused", ["resume", "complete", "abort"]),
        ("overdrawn", ["complete", "abort"]),
        ("reserving", ["pause", "complete", "abort"]),
        ("completed", []),
        ("aborted", []),
    ],
)
def test_actions_shown_of_run_are_those_it_takes(ledger: Ledger, state: str, actions: list[str]) -> None:
    for action in actions or [""]:
        run, (call, body) = ledger.run(name=f"run-{action}"), STATES[state]
        assert call is None or ledger.post(f"/v1/runs/{run}/{call}", body).is_success
        offered, text = shown(ledger, run, Role.PRIVACY_OFFICER)
        assert offered == actions
        if action:
            executed = {"steps_executed": 3} if (state, action) == ("reserving", "complete") else None
            assert ("steps_executed" in text) is (state == "reserving")
            reply = ledger.post(f"/v1/runs/{run}/{action}", executed, "privacy_officer")
            assert reply.status_code == 200, reply.text


def test_run_that_needs_approval_can_only_be_aborted_and_viewers_do_nothing(ledger: Ledger) -> None:
    run = ledger.run()
    for role in Role:
        assert bool(shown(ledger, run, role)[0]) is (Permission.RUN_MANAGE in PERMISSIONS[role]), role
    assert ledger.set_policy({"approval_above_epsilon": 0.1}).is_success
    run = ledger.run(name="large")
    assert shown(ledger, run, Role.BUDGET_ADMIN)[0] == ["abort"]
    assert ledger.post(f"/v1/runs/{run}/abort", None, "budget_admin").status_code == 200
