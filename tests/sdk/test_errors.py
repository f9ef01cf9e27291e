"""Every no of the ledger becomes its exception."""

import math
import pickle
import re

import httpx2
import pytest

import epsilon_ledger
from epsilon_ledger import (
    AccountArchivedError,
    AccountStateConflictError,
    Alternative,
    AuthenticationError,
    BudgetClosedError,
    BudgetExceededError,
    ChartsNotInstalledError,
    IdempotencyKeyReusedError,
    InvalidRequestError,
    LedgerClient,
    LedgerError,
    LedgerUnavailableError,
    NameTakenError,
    NotFoundError,
    PermissionDeniedError,
    PlanNotGrantedError,
    PlanRequiredError,
    PlansWaitingError,
    PlanUsage,
    PolicyViolationError,
    PreconditionFailedError,
    ProblemError,
    ProposalClosedError,
    RaisedLimit,
    ReceiverStateConflictError,
    RequestInDoubtError,
    RequestTooLargeError,
    Run,
    RunStateConflictError,
    SequenceConflictError,
    SequenceGapError,
    SigningNotConfiguredError,
    StepsAlreadyTakenError,
    UnexpectedResponseError,
    UnsupportedEventError,
)
from epsilon_ledger._wire import errors
from tests.sdk.fake_ledger import RDP, REFUSAL, RUN_ID, FakeLedger, Fault, problem

CASES = [
    (403, "budget_exceeded", REFUSAL, BudgetExceededError),
    (403, "budget_closed", {"account_path": "mimic", "opens_at": None, "closes_at": "2027"}, BudgetClosedError),
    (403, "plan_required", {"account": "bud_1", "account_path": "mimic"}, PlanRequiredError),
    (409, "plans_waiting", {}, PlansWaitingError),
    (409, "sequence_conflict", {}, SequenceConflictError),
    (409, "sequence_gap", {"expected_step": 7}, SequenceGapError),
    (409, "run_state_conflict", {"run_status": "paused"}, RunStateConflictError),
    (409, "name_taken", {}, NameTakenError),
    (409, "proposal_closed", {}, ProposalClosedError),
    (409, "account_archived", {}, AccountArchivedError),
    (409, "account_state_conflict", {}, AccountStateConflictError),
    (409, "signing_not_configured", {}, SigningNotConfiguredError),
    (409, "receiver_state_conflict", {}, ReceiverStateConflictError),
    (412, "precondition_failed", {"limit_revision": 2}, PreconditionFailedError),
    (422, "idempotency_key_reused", {}, IdempotencyKeyReusedError),
    (422, "invalid_request", {"errors": [{"field": "count"}]}, InvalidRequestError),
    (422, "unsupported_event", {}, UnsupportedEventError),
    (422, "delta_too_large", {}, InvalidRequestError),
    (400, "bad_request", {}, InvalidRequestError),
    (413, "request_too_large", {}, RequestTooLargeError),
    (401, "unauthenticated", {}, AuthenticationError),
    (403, "insufficient_scope", {}, PermissionDeniedError),
    (403, "policy_violation", {"rule": "mechanisms"}, PolicyViolationError),
    (403, "a_code_of_tomorrow", {}, PermissionDeniedError),
    (404, "not_found", {}, NotFoundError),
    (409, "a_code_of_tomorrow", {}, ProblemError),
    (418, "", {}, ProblemError),
    (500, "internal_error", {}, ProblemError),
    (501, "charts_not_installed", {}, ChartsNotInstalledError),
]


@pytest.mark.parametrize(("status", "code", "members", "kind"), CASES, ids=lambda value: str(value)[:25])
def test_mapping(
    run: Run,
    ledger: FakeLedger,
    status: int,
    code: str,
    members: dict[str, object],
    kind: type[ProblemError],
) -> None:
    ledger.faults.append(Fault(instead=problem(status, code, **members)))
    with pytest.raises(ProblemError) as caught:
        run.authorize()
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.detail) == (status, code, "Why.")
    assert error.problem.members.items() >= members.items()
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_a_refusal_carries_all_that_was_said(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **REFUSAL)))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(4)
    for name, value in REFUSAL.items():
        if name not in {"decision", "rdp", "alternatives", "unavailable_alternatives"}:
            assert getattr(caught.value, name) == value
    raised = RaisedLimit("bud_1", "mimic/icu-team", 3.25, 1e-5)
    assert caught.value.alternatives == (
        Alternative("same_noise", 1, None, None),
        Alternative("more_noise", 4, 3.75, None),
        Alternative("higher_limit", 4, None, (raised,)),
    )
    assert (caught.value.same_noise, caught.value.more_noise, caught.value.higher_limit) == caught.value.alternatives
    assert str(caught.value) == (
        "4 steps from 10 of run_1 refused: mimic/icu-team has spent epsilon 2.9 of 3 at delta 1e-05, and this "
        "would make it 3.2. Alternatives: 1 more step as they are; or a noise multiplier of 3.75 for all 4 steps that "
        "are still needed; or a limit of epsilon 3.25 for mimic/icu-team, for all 4 steps that are still needed as "
        "they are. See https://ledger.example.org/runs/run_1"
    )


USED_UP = {
    "steps_needed": 900,
    "exhausted": True,
    "alternatives": [],
    "unavailable_alternatives": [{"type": "more_noise", "reason": "exhausted"}],
}


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({"alternatives": [{"type": "same_noise", "steps": 1}], "url": None}, "Alternatives: 1 more step as they are."),
        (
            USED_UP | {"url": None},
            "steps that are still needed fit even at ten times the noise. Alternatives: none.",
        ),
        ({"alternatives": []}, "Alternatives: none. See https://ledger.example.org/runs/run_1"),
    ],
)
def test_a_refusal_says_what_fits(run: Run, ledger: FakeLedger, changed: dict[str, object], end: str) -> None:
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **(REFUSAL | changed))))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize()
    assert str(caught.value).endswith(end)


def test_a_refusal_names_the_plan_that_is_used_up(run: Run, ledger: FakeLedger) -> None:
    plan = {"steps": 900, "steps_used": 890, "steps_left": 2}
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **(REFUSAL | {"plan": plan}))))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize(4)
    assert caught.value.plan == PlanUsage(**plan)
    assert "at delta 1e-05, and 2 of the 900 steps of its plan are left. Alternatives" in str(caught.value)


def test_an_infinite_request_is_told_as_infinite(run: Run, ledger: FakeLedger) -> None:
    members = REFUSAL | {"epsilon_requested": "Infinity", "rdp": RDP | {"order": "Infinity", "requested": "Infinity"}}
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **members)))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize()
    refused = caught.value
    assert refused.epsilon_requested == refused.rdp.requested == refused.rdp.order == math.inf
    assert refused.rdp.spent == RDP["spent"]


def test_deltas_of_mechanisms_are_told(run: Run, ledger: FakeLedger) -> None:
    said = {"delta_requested": 1e-7, "delta_left": 2e-8}
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **(REFUSAL | said))))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize()
    assert (caught.value.delta_requested, caught.value.delta_left) == (1e-7, 2e-8)


def test_further_facts_are_attributes(run: Run, ledger: FakeLedger) -> None:
    ledger.next_step = 0
    ledger.faults.append(Fault(instead=problem(409, "sequence_gap", expected_step=7)))
    with pytest.raises(SequenceGapError) as gap:
        run.authorize()
    assert gap.value.expected_step == 7
    ledger.faults.append(Fault(instead=problem(422, "invalid_request", errors=[{"field": "count"}])))
    with pytest.raises(InvalidRequestError) as invalid:
        run.authorize()
    assert invalid.value.errors == ({"field": "count"},)


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(403, text="<html>A proxy's login page</html>"),
        httpx2.Response(302, headers={"Location": "https://login.example.org"}),
        httpx2.Response(404, json={"detail": "Not Found"}),
        httpx2.Response(422, content=b"not JSON", headers={"Content-Type": "application/problem+json"}),
        httpx2.Response(422, content=b"[]", headers={"Content-Type": "application/problem+json"}),
        problem(403, "budget_exceeded"),
        problem(409, "sequence_gap", expected_step="7"),
        problem(409, "run_state_conflict"),
    ],
)
def test_an_answer_that_is_not_the_ledgers_is_named_as_such(
    run: Run, ledger: FakeLedger, answer: httpx2.Response
) -> None:
    ledger.faults.append(Fault(instead=answer))
    with pytest.raises(UnexpectedResponseError) as caught:
        run.authorize()
    assert caught.value.status == answer.status_code


def test_a_problem_without_words_still_says_something(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(instead=problem(418, "", title=None, detail=5)))
    with pytest.raises(ProblemError, match=r"the ledger gave no reason \(418 no code\)"):
        client.get_run(RUN_ID)


@pytest.mark.parametrize(
    "error",
    [
        LedgerUnavailableError("m", attempts=3, elapsed=1.5, retry_after=2.0, in_doubt=False),
        UnexpectedResponseError("m", status=302),
        RequestInDoubtError("m", first_step=4),
        StepsAlreadyTakenError("m", run="run_1", first_step=4, next_step=5),
        PlanNotGrantedError("m", run="run_1", reservation="res_1", reservation_status="expired"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_clients_own_errors_survive_pickling(error: LedgerError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert vars(copy) == vars(error)
    assert str(copy) == "m"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: list[tuple[str, str]] = []
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"( *)[*+·-] (\w+Error)", line)
        if found is None:
            continue
        depth, name = len(found[1]), found[2]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        drawn.append((name, stack[-1][1] if stack else "Exception"))
        stack.append((depth, name))
    public = [getattr(epsilon_ledger, name) for name in epsilon_ledger.__all__ if name.endswith("Error")]
    assert sorted(drawn) == sorted((kind.__name__, kind.__base__.__name__) for kind in public)


@pytest.mark.parametrize(
    ("spent", "limit", "requested", "told"),
    [
        (1.99888, 2.0, 2.00019, "1.99888 of 2 at delta 1e-05, and this would make it 2.00019."),
        (1.9999996, 2.0, 2.0000003, "1.9999996 of 2 at delta 1e-05, and this would make it 2.0000003."),
        (1.5, 2.0000001, 2.5, "1.5 of 2.0000001 at delta 1e-05, and this would make it 2.5."),
        (2 - 1e-13, 2.0, "Infinity", "1.9999999999999 of 2 at delta 1e-05, and this would make it inf."),
    ],
)
def test_no_rounding_hides_the_reason_of_a_refusal(
    run: Run, ledger: FakeLedger, spent: float, limit: float, requested: float | str, told: str
) -> None:
    members = REFUSAL | {"epsilon": spent, "epsilon_limit": limit, "epsilon_requested": requested}
    ledger.faults.append(Fault(instead=problem(403, "budget_exceeded", **members)))
    with pytest.raises(BudgetExceededError) as caught:
        run.authorize()
    assert f"has spent epsilon {told}" in str(caught.value)
