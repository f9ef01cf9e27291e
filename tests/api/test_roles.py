"""What a key may do: the table of roles, written by hand and compared with reality."""

import itertools
from collections.abc import Iterator

import pytest

from tests.api.conftest import House
from tests.api.operations import GUARDED, Operation, valid_body
from tests.conftest import SAMPLED

RANKS = ["viewer", "trainer", "admin"]
LEAST_ROLE = {
    "createPopulation": "admin",
    "createBudget": "admin",
    "registerRun": "trainer",
    "takeSteps": "trainer",
    "completeRun": "trainer",
    "pauseRun": "trainer",
    "resumeRun": "trainer",
    "abortRun": "trainer",
    "openAttempt": "trainer",
    "reserve": "trainer",
    "commitReservation": "trainer",
    "voidReservation": "trainer",
    "renewReservation": "trainer",
    "getReservation": "viewer",
    "verifyLedger": "admin",
    "planEpsilon": "viewer",
    "planDelta": "viewer",
    "planTrajectory": "viewer",
    "planNoiseMultiplier": "viewer",
    "planSteps": "viewer",
    "planSamplingProbability": "viewer",
    "planLaplace": "viewer",
    "listPopulations": "viewer",
    "getPopulation": "viewer",
    "listBudgets": "viewer",
    "getBudget": "viewer",
    "listRuns": "viewer",
    "getRun": "viewer",
    "getRunHistory": "viewer",
}
NUMBERS: Iterator[int] = itertools.count()


def _reservation(house: House, run: str) -> str:
    """An active reservation of a run."""
    plan = {"plan": [{"event": SAMPLED, "count": 1}]}
    return str(house.ledger.post(f"/v1/runs/{run}/reservations", plan).json()["id"])


def test_the_table_names_every_operation() -> None:
    assert set(LEAST_ROLE) == {operation.id for operation in GUARDED}


@pytest.mark.parametrize("role", RANKS)
@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
def test_a_role_may_do_what_the_table_says_and_nothing_else(house: House, operation: Operation, role: str) -> None:
    run = house.ledger.run()
    ids = house.ids() | {"run_id": run}
    if "reservation_id" in operation.path:
        ids["reservation_id"] = _reservation(house, run)
    body = valid_body(operation, f"{operation.id}-{next(NUMBERS)}")
    before = house.rows()
    reply = house.ledger.http.request(
        operation.method, operation.at(**ids), json=body, headers=house.ledger.headers(role)
    )
    if RANKS.index(role) >= RANKS.index(LEAST_ROLE[operation.id]):
        assert reply.status_code in {200, 201}, reply.text
    else:
        assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")
        assert reply.json()["required_role"] == LEAST_ROLE[operation.id]
        assert house.rows() == before


def test_a_viewer_may_not_even_preview_steps(house: House) -> None:
    reply = house.ledger.post(f"/v1/runs/{house.run}/steps?dry_run=true", {}, "viewer")
    assert (reply.status_code, reply.json()["code"]) == (403, "insufficient_scope")


def test_a_missing_role_is_told_before_what_there_is(house: House) -> None:
    answers = [house.ledger.post(f"/v1/runs/{run}/pause", None, "viewer") for run in (house.run, "run_nothing")]
    assert [reply.status_code for reply in answers] == [403, 403]
    assert answers[0].content == answers[1].content
