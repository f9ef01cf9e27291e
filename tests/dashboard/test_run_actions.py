"""What can be done to a run: in each of its states what is shown is what the API takes."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.dashboard.page_context import templates
from app.ledger.permissions import PERMISSIONS, Permission, Role
from app.service.auth.authentication import authenticate
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import get_run
from tests.conftest import SAMPLED, Ledger, open_ledger

PART = templates().from_string(
    '{% from "run_actions.html" import run_actions with context %}{{ run_actions(record, page) }}'
)
PLAN = {"plan": [{"event": SAMPLED, "count": 5}]}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path) as ledger:
        ledger.population()
        ledger.budget()
        yield ledger


def _shown(ledger: Ledger, run: str, role: Role) -> str:
    now = datetime.now(UTC)
    caller = authenticate(ledger.database, f"Bearer {ledger.keys['hospital', role]}", now)
    record = get_run(RequestContext(ledger.database, caller, now), run)

    def may(needed: Permission) -> bool:
        return needed in PERMISSIONS[role]

    return PART.render(record=record, page=SimpleNamespace(has_permission=may))


def _calls(text: str, run: str) -> list[str]:
    found = re.findall(r'data-call="POST /v1/runs/([^"]+)"', text)
    assert all(each.startswith(f"{run}/") for each in found)
    return [each.rpartition("/")[2] for each in found]


def _put_into(ledger: Ledger, run: str, state: str) -> None:
    """Bring a new run into a state."""
    if state == "overdrawn":
        loud = {"count": 10**6, "mode": "report"}
        assert ledger.post(f"/v1/runs/{run}/steps", loud, "trainer").status_code == 200
    elif state == "reserving":
        assert ledger.post(f"/v1/runs/{run}/reservations", PLAN, "trainer").status_code == 201
    elif state != "active":
        action = {"paused": "pause", "completed": "complete", "aborted": "abort"}[state]
        assert ledger.post(f"/v1/runs/{run}/{action}", None).status_code == 200


@pytest.mark.parametrize(
    ("state", "actions"),
    [
        ("active", "pause complete abort"),
        ("paused", "resume complete abort"),
        ("overdrawn", "complete abort"),
        ("reserving", "pause complete abort"),
        ("completed", ""),
        ("aborted", ""),
    ],
)
def test_actions_shown_of_run_are_those_it_takes(ledger: Ledger, state: str, actions: str) -> None:
    for action in actions.split() or [""]:
        run = ledger.run(name=f"run-{action}")
        _put_into(ledger, run, state)
        text = _shown(ledger, run, Role.PRIVACY_OFFICER)
        assert _calls(text, run) == actions.split()
        if action:
            body = {"steps_executed": 3} if (state, action) == ("reserving", "complete") else None
            assert ("steps_executed" in text) is (state == "reserving")
            reply = ledger.post(f"/v1/runs/{run}/{action}", body, "privacy_officer")
            assert reply.status_code == 200, reply.text


def test_run_that_needs_approval_can_only_be_aborted(ledger: Ledger) -> None:
    changed = ledger.http.put(
        "/v1/policy",
        json={"policy": {"approval_above_epsilon": 0.1}, "reason": "Large runs wait."},
        headers=ledger.headers() | {"If-Match": "*"},
    )
    assert changed.status_code == 200
    run = ledger.run()
    assert _calls(_shown(ledger, run, Role.BUDGET_ADMIN), run) == ["abort"]
    assert ledger.post(f"/v1/runs/{run}/abort", None, "budget_admin").status_code == 200


def test_actions_are_shown_to_roles_that_manage_runs(ledger: Ledger) -> None:
    run = ledger.run()
    for role in Role:
        assert bool(_calls(_shown(ledger, run, role), run)) is (Permission.RUN_MANAGE in PERMISSIONS[role]), role
