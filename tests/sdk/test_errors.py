"""Every no of the ledger becomes its exception."""

import math
import pickle

import httpx2
import pytest

import epsilon_ledger as sdk
from epsilon_ledger import Alternative, LedgerClient, Limit, RaisedLimit, Run
from epsilon_ledger._wire.references import _first
from tests.each import for_each
from tests.sdk.fake_ledger import REFUSAL, RUN_ID, FakeLedger, problem

CASES = [
    (403, "budget_exceeded", REFUSAL, sdk.BudgetExceededError),
    (403, "account_closed", {"account_path": "mimic", "opens_at": None, "closes_at": "2027"}, sdk.AccountClosedError),
    (403, "reservation_required", {"account": "bud_1", "account_path": "mimic"}, sdk.ReservationRequiredError),
    (409, "reservations_waiting", {}, sdk.ReservationsWaitingError),
    (409, "sequence_conflict", {}, sdk.SequenceConflictError),
    (409, "sequence_gap", {"expected_step": 7}, sdk.SequenceGapError),
    (409, "run_state_conflict", {"run_status": "paused"}, sdk.RunStateConflictError),
    (409, "name_taken", {}, sdk.NameTakenError),
    (409, "proposal_closed", {}, sdk.ProposalClosedError),
    (409, "account_archived", {}, sdk.AccountArchivedError),
    (409, "account_state_conflict", {}, sdk.AccountStateConflictError),
    (409, "signing_not_configured", {}, sdk.SigningNotConfiguredError),
    (409, "receiver_state_conflict", {}, sdk.ReceiverStateConflictError),
    (412, "precondition_failed", {"limit_revision": 2}, sdk.PreconditionFailedError),
    (422, "idempotency_key_reused", {}, sdk.IdempotencyKeyReusedError),
    (422, "invalid_request", {"errors": [{"field": "count"}]}, sdk.InvalidRequestError),
    (422, "unsupported_event", {}, sdk.UnsupportedEventError),
    (422, "delta_too_large", {}, sdk.InvalidRequestError),
    (400, "bad_request", {}, sdk.InvalidRequestError),
    (413, "request_too_large", {}, sdk.RequestTooLargeError),
    (401, "unauthenticated", {}, sdk.AuthenticationError),
    (403, "permission_denied", {}, sdk.PermissionDeniedError),
    (403, "policy_violation", {"rule": "mechanisms"}, sdk.PolicyViolationError),
    (403, "a_code_of_tomorrow", {}, sdk.PermissionDeniedError),
    (404, "not_found", {}, sdk.NotFoundError),
    (409, "a_code_of_tomorrow", {}, sdk.ProblemError),
    (418, "", {}, sdk.ProblemError),
    (500, "internal_error", {}, sdk.ProblemError),
]


@pytest.mark.parametrize(("status", "code", "members", "kind"), CASES, ids=lambda value: str(value)[:25])
def test_mapping(
    run: Run, ledger: FakeLedger, status: int, code: str, members: dict[str, object], kind: type[sdk.ProblemError]
) -> None:
    ledger.answers(problem(status, code, **members))
    with pytest.raises(sdk.ProblemError) as caught:
        run.authorize()
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.detail) == (status, code, "Why.")
    assert error.problem.members.items() >= members.items()
    for name in ("expected_step", "run_status", "rule"):
        assert getattr(error, name, members.get(name)) == members.get(name)
    if isinstance(error, sdk.InvalidRequestError):
        assert list(error.errors) == members.get("errors", [])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_refusal_carries_all_that_was_said(run: Run, ledger: FakeLedger) -> None:
    ledger.answers(problem(403, "budget_exceeded", **REFUSAL))
    with pytest.raises(sdk.BudgetExceededError) as caught:
        run.authorize(4)
    for name, value in REFUSAL.items():
        if name not in {"decision", "limit", "alternatives", "unavailable_alternatives"}:
            assert getattr(caught.value, name) == value
    assert caught.value.limit == Limit(3.0, 1e-5)
    raised = RaisedLimit("bud_1", "mimic/icu-team", 3.25, 1e-5)
    assert caught.value.alternatives == (
        Alternative("same_noise", 1, None, None),
        Alternative("more_noise", 4, 3.75, None),
        Alternative("higher_limit", 4, None, (raised,)),
    )
    assert (caught.value.same_noise, caught.value.more_noise, caught.value.higher_limit) == caught.value.alternatives
    assert str(caught.value) == "Why. See https://ledger.example.org/runs/run_1"


OWN: list[sdk.LedgerError] = [
    sdk.LedgerUnavailableError("m", attempts=3, elapsed=1.5, retry_after=2.0, in_doubt=False),
    sdk.UnexpectedResponseError("m", status=302),
    sdk.RequestInDoubtError("m", first_step=4),
    sdk.StepsAlreadyTakenError("m", run="run_1", first_step=4, next_step=5),
    sdk.ReservationNotGrantedError("m", run="run_1", reservation="res_1", reservation_status="expired"),
]


def test_clients_own_errors_survive_pickling() -> None:
    for error in OWN:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert vars(copy) == vars(error)
        assert str(copy) == "m"


JSON_PROBLEM = {"Content-Type": "application/problem+json"}


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(403, text="<html>A proxy's login page</html>"),
        httpx2.Response(302, headers={"Location": "https://login.example.org"}),
        httpx2.Response(404, json={"detail": "Not Found"}),
        *(httpx2.Response(422, content=content, headers=JSON_PROBLEM) for content in (b"not JSON", b"[]")),
        problem(403, "budget_exceeded"),
        problem(409, "sequence_gap", expected_step="7"),
        problem(409, "run_state_conflict"),
    ],
)
def test_answer_that_is_not_ledgers_is_unexpected(run: Run, ledger: FakeLedger, answer: httpx2.Response) -> None:
    ledger.answers(answer)
    with pytest.raises(sdk.UnexpectedResponseError) as caught:
        run.authorize()
    assert caught.value.status == answer.status_code


def test_infinite_epsilon_of_run_is_infinite_number(run: Run, ledger: FakeLedger) -> None:
    ledger.answers(problem(403, "budget_exceeded", **(REFUSAL | {"epsilon": "Infinity"})))
    with pytest.raises(sdk.BudgetExceededError) as caught:
        run.authorize()
    assert (caught.value.epsilon, caught.value.used_requested) == (math.inf, 1.25)


def test_problem_without_words_has_message(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.answers(problem(418, "", title=None, detail=5))
    with pytest.raises(sdk.ProblemError, match=r"the ledger gave no reason \(418 no code\)"):
        client.get_run(RUN_ID)


@for_each([("population", "mimic"), ("budget", "mimic/icu-team"), ("run", "mimic/icu-team/model")])
def test_missing_object_is_reported_with_a_path_of_its_kind(case: tuple[str, str]) -> None:
    kind, example = case
    with pytest.raises(sdk.NotFoundError, match=rf"There is no {kind} at .* looks like {example}\. "):
        _first((), kind, "nowhere")
