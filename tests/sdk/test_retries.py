"""A request is sent until it is answered, and has one effect; a step that is in doubt is settled before any other."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from epsilon_ledger import (
    BudgetExceededError,
    EventCount,
    LedgerClient,
    LedgerUnavailableError,
    ProblemError,
    RequestInDoubtError,
    Run,
    SequenceConflictError,
    StepsAlreadyTakenError,
    UnexpectedResponseError,
    gaussian,
)
from tests.sdk.conftest import Clock
from tests.sdk.fake_ledger import RUN_ID, TRIES, FakeLedger, Fault, authorization, problem

LOST = Fault(after=httpx2.ReadTimeout("no answer"))
"""It arrives, and the reply does not."""
REFUSED = Fault(instead=httpx2.ConnectError("refused"))
LOST_ON_THE_WAY_BACK = [
    *(httpx2.ReadTimeout("no answer"), httpx2.ReadError("reset"), httpx2.RemoteProtocolError("disconnected")),
    *(problem(502, "bad_gateway"), problem(503, "ledger_unavailable"), httpx2.Response(504, text="<html>proxy</html>")),
]
NEVER_ARRIVED: list[httpx2.Response | Exception] = [
    *(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("nobody there"), httpx2.PoolTimeout("all in use")),
    problem(429, "too_many_requests"),
]


def busy(retry_after: str, status: int = 503) -> Fault:
    return Fault(instead=problem(status, "busy", {"Retry-After": retry_after}))


def in_doubt(run: Run, ledger: FakeLedger, count: int = 1) -> None:
    """Ask for steps until the client gives up without having heard the answer."""
    ledger.faults.extend([LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize(count)
    assert caught.value.in_doubt
    assert any("same arguments" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("fault", LOST_ON_THE_WAY_BACK, ids=str)
def test_request_that_may_have_arrived_is_repeated_under_its_key_and_charges_once(
    run: Run, ledger: FakeLedger, fault: httpx2.Response | Exception
) -> None:
    ledger.faults.extend([Fault(after=fault), Fault(after=fault)])
    answer = run.authorize(3)
    assert (answer.first_step, answer.next_step, run.next_step, ledger.next_step) == (0, 3, 3, 3)
    assert ledger.bodies == [{"first_step": 0, "attempt": 1, "count": 3}] * 3
    assert len(set(ledger.keys)) == 1
    assert run.authorize().first_step == 3


@pytest.mark.parametrize("fault", NEVER_ARRIVED, ids=str)
def test_request_that_never_arrived_is_repeated(
    run: Run, ledger: FakeLedger, fault: httpx2.Response | Exception
) -> None:
    ledger.faults.append(Fault(instead=fault))
    assert run.authorize().next_step == 1
    assert len(set(ledger.keys)) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 500])
def test_final_answer_is_not_asked_for_again(run: Run, ledger: FakeLedger, status: int) -> None:
    ledger.faults.append(Fault(instead=problem(status, "some_code")))
    with pytest.raises(ProblemError):
        run.authorize()
    assert len(ledger.requests) == 1


def test_every_post_has_its_own_key_and_reads_have_none(client: LedgerClient, ledger: FakeLedger) -> None:
    run = client.create_run("icu", budget="mimic/icu-team")
    for ask in (run.preview, run.authorize, run.authorize, run.pause):
        ask()
    assert len(ledger.keys) == len(set(ledger.keys)) == 5
    client.get_run(RUN_ID)
    assert "Idempotency-Key" not in ledger.requests[-1].headers


def test_reads_and_creations_are_repeated(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.ReadTimeout("no answer"))] * 3)
    assert client.get_run(RUN_ID).id == RUN_ID
    ledger.requests.clear()
    ledger.faults.append(LOST)
    assert client.create_run("icu", budget="mimic/icu-team").id == RUN_ID
    assert len(set(ledger.keys)) == 1


def test_pauses_double_up_to_ceiling_and_tries_are_bounded(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.extend([REFUSED] * 20)
    with pytest.raises(LedgerUnavailableError, match="ConnectError: refused") as caught:
        run.authorize()
    assert clock.naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])
    assert (caught.value.attempts, len(ledger.requests), caught.value.in_doubt) == (TRIES, TRIES, False)
    assert caught.value.elapsed == pytest.approx(52.7)
    assert run._transport._retry_policy.pause(5_000, 0.0) == 10.0


def test_jitter_spreads_pauses_from_zero_to_ceiling() -> None:
    with LedgerClient("http://ledger.test", "key") as client:
        pauses = [client._transport._retry_policy.pause(3, 0.0) for _ in range(500)]
    assert min(pauses) < 0.1
    assert 0.3 < max(pauses) <= 0.4
    with pytest.raises(ValueError, match="max_attempts"):
        LedgerClient("http://ledger.test", "key", max_attempts=0)


def test_whole_time_is_bounded(run: Run, clock: Clock) -> None:
    def slow(_: httpx2.Request) -> httpx2.Response:
        clock.now += 10.0
        raise httpx2.ReadTimeout("no answer")

    run._transport._http = httpx2.MockTransport(slow)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert caught.value.attempts < TRIES
    assert clock.now <= 60.0 + 10.0
    assert caught.value.in_doubt


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        # The ledger's seconds, and the random pause on top.
        (lambda: "7", 7.1, 7.1),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=7.9), usegmt=True), 6.1, 8.1),
        *((lambda value=value: value, 0.1, 0.1) for value in ("soon", "-5", "1.5", "")),
        (lambda: "Wed, 21 Oct 2015 07:28:00 -0000", 0.1, 0.1),
    ],
)
def test_retry_after_is_waited_for_where_it_can_be_read(
    run: Run, ledger: FakeLedger, clock: Clock, value: Callable[[], str], least: float, most: float
) -> None:
    ledger.faults.append(busy(value()))
    run.authorize()
    [nap] = clock.naps
    assert least - 1e-9 <= nap <= most + 1e-9


def test_retry_after_beyond_allowed_time_ends_call(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.append(busy("3600", 429))
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert (caught.value.retry_after, caught.value.attempts, clock.naps) == (3600.0, 1, [])


def test_rate_limit_is_no_failed_try_and_ends_by_time(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.extend([busy("3", 429)] * 3)
    assert run.authorize(2).next_step == ledger.next_step == 2
    assert clock.naps == pytest.approx([3.1, 3.2, 3.4])
    assert len(set(ledger.keys)) == 1
    ledger.faults.extend([busy("1", 429)] * (2 * TRIES))
    began = clock.now
    assert run.authorize().next_step == 3
    assert 2 * TRIES <= clock.now - began < 60
    ledger.faults.extend([busy("1", 429)] * 1000)
    with pytest.raises(LedgerUnavailableError, match="429") as caught:
        run.authorize()
    assert not caught.value.in_doubt
    assert caught.value.elapsed <= 60


def test_same_call_settles_steps_in_doubt_and_no_other_call_is_sent_before(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger, 2)
    asked = len(ledger.requests)
    others: list[Callable[[], object]] = [
        run.authorize,
        run.preview,
        lambda: run.authorize(2, event=gaussian(9.0)),
        lambda: run.authorize(events=[EventCount(event=gaussian(9.0), count=1)]),
    ]
    for ask in others:
        with pytest.raises(RequestInDoubtError, match="Step 0") as caught:
            ask()
        assert caught.value.first_step == 0
    assert (len(ledger.requests), run.next_step) == (asked, 0)
    assert run.authorize(2).next_step == 2
    assert len(set(ledger.keys)) == 1
    assert (run.next_step, ledger.next_step) == (2, 2)
    assert run.authorize(2).next_step == 4
    assert len(set(ledger.keys)) == 2


def test_settle_charges_steps_in_doubt_that_no_training_released(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger)
    ledger.faults.extend([LOST] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.settle()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    settled = run.settle()
    assert settled is not None
    assert (settled.first_step, settled.next_step, len(set(ledger.keys))) == (0, 1, 1)
    # Nobody released it, so it is no step of the training.
    assert (run.next_step, run.step) == (1, None)
    assert run.authorize(2, event=gaussian(9.0)).first_step == 1
    assert run.settle() is None


def test_settle_of_refused_step_charges_nothing(run: Run, ledger: FakeLedger) -> None:
    ledger.capacity = 2
    ledger.faults.extend([Fault(instead=httpx2.ReadTimeout("no answer"))] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize(3)
    assert run.settle() is None
    assert run.authorize(2).first_step == 0


def test_settle_refuses_answer_to_another_request(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger)
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=authorization(5, 1))))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.settle()
    assert run.next_step == 0
    assert run.settle() is not None


def test_change_of_state_does_not_renumber_steps_in_doubt(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger)
    run.pause()
    run.resume()
    assert run.next_step == 1
    assert run.authorize().first_step == 0
    assert ledger.next_step == 1


DOUBTS: dict[str, tuple[list[Fault], type[BaseException]]] = {
    "interrupt": ([Fault(after=KeyboardInterrupt())], KeyboardInterrupt),
    "500": ([Fault(after=problem(500, "internal_error"))], ProblemError),
    "no JSON": ([Fault(after=httpx2.Response(200, text="<html>"))], UnexpectedResponseError),
    "no authorization": ([Fault(after=httpx2.Response(200, json={"a": 1}))], UnexpectedResponseError),
    "no key at the second try": ([LOST, Fault(instead=problem(401, "unauthenticated"))], ProblemError),
    "pause before the second try": (
        [LOST, Fault(instead=problem(409, "run_state_conflict", run_status="paused"))],
        ProblemError,
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_step_without_usable_answer_stays_in_doubt(run: Run, ledger: FakeLedger, name: str) -> None:
    faults, error = DOUBTS[name]
    ledger.faults.extend(faults)
    with pytest.raises(error):
        run.authorize()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    assert run.next_step == 0
    assert run.authorize().next_step == ledger.next_step == 1
    assert len(set(ledger.keys)) == 1


@pytest.mark.parametrize("faults", [[REFUSED] * TRIES, [Fault(instead=problem(401, "unauthenticated"))]])
def test_step_that_surely_had_no_effect_is_not_in_doubt(run: Run, ledger: FakeLedger, faults: list[Fault]) -> None:
    ledger.faults.extend(faults)
    with pytest.raises((LedgerUnavailableError, ProblemError)):
        run.authorize()
    assert run.authorize(2).next_step == 2


def test_refusal_whose_reply_was_lost_stays_refusal_and_next_call_is_new(run: Run, ledger: FakeLedger) -> None:
    ledger.capacity = 2
    ledger.faults.append(LOST)
    with pytest.raises(BudgetExceededError):
        run.authorize(3)
    assert len(set(ledger.keys)) == 1
    ledger.capacity = 10
    assert run.authorize(3).next_step == 3
    assert len(set(ledger.keys)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        *({"decision": "refused"}, {"dry_run": True}, {"run": "run_other"}, {"first_step": 5}, {"next_step": 7}),
        {"first_step": 5, "next_step": 6},
    ],
    ids=str,
)
def test_only_admission_of_request_counts(run: Run, ledger: FakeLedger, changed: dict[str, object]) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=authorization(0, 1) | changed)))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.authorize()
    assert run.next_step == 0


def test_steps_of_another_process_are_never_released(client: LedgerClient, ledger: FakeLedger) -> None:
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize(2)
    with pytest.raises(StepsAlreadyTakenError, match="Steps 0 to 1 of run_1") as caught:
        zombie.authorize(2)
    assert (caught.value.run, caught.value.first_step, caught.value.next_step) == (RUN_ID, 0, 2)
    # Neither does a try that never arrived make them its own.
    for fault in [Fault(), *(Fault(instead=fault) for fault in NEVER_ARRIVED)]:
        for ask in (zombie.authorize, zombie.preview):
            ledger.faults.append(fault)
            with pytest.raises(StepsAlreadyTakenError):
                ask(2)
    with pytest.raises(SequenceConflictError):
        zombie.authorize(2, event=gaussian(3.0))
    assert zombie.next_step == 0
    assert client.get_run(RUN_ID).authorize(2).first_step == 2
    assert ledger.next_step == 4


def test_key_of_replay_shows_whose_steps_they_are(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.tells_key = True
    restarted, zombie = client.get_run(RUN_ID), client.get_run(RUN_ID)
    restarted.authorize()
    # The zombie's first try may have arrived as far as it knows, but it did not.
    ledger.faults.append(Fault(instead=problem(503, "ledger_unavailable")))
    with pytest.raises(StepsAlreadyTakenError):
        zombie.authorize()
    ledger.faults.append(LOST)
    assert restarted.authorize().first_step == 1
