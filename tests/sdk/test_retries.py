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
    UnexpectedResponseError,
    gaussian,
)
from tests.sdk.fake_ledger import RUN_ID, TRIES, FakeLedger, authorization, problem
from tests.sdk.wire import KEY, URL, Clock, Fault, Try

LOST_ON_THE_WAY_BACK: list[httpx2.Response | Exception] = [
    *(httpx2.ReadTimeout("no answer"), httpx2.ReadError("reset"), httpx2.RemoteProtocolError("disconnected")),
    *(problem(502, "bad_gateway"), problem(503, "ledger_unavailable"), httpx2.Response(504, text="<html>proxy</html>")),
]
NEVER_ARRIVED: list[httpx2.Response | Exception] = [
    *(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("not there"), httpx2.PoolTimeout("all in use")),
    problem(429, "too_many_requests"),
]


def busy(retry_after: str, status: int = 503) -> httpx2.Response:
    return problem(status, "busy", {"Retry-After": retry_after})


def in_doubt(run: Run, ledger: FakeLedger, count: int = 1) -> None:
    """Ask for steps until the client gives up without having heard the answer."""
    ledger.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize(count)
    assert caught.value.in_doubt
    assert any("same arguments" in note for note in caught.value.__notes__)


def keys(ledger: FakeLedger) -> int:
    """How many requests there were, each with its tries."""
    return len(set(ledger.keys))


@pytest.mark.parametrize("fault", LOST_ON_THE_WAY_BACK, ids=str)
def test_request_that_may_have_arrived_is_repeated_under_its_key_and_charges_once(
    run: Run, ledger: FakeLedger, fault: httpx2.Response | Exception
) -> None:
    ledger.fails(*[Try(fault)] * 2)
    answer = run.authorize(3)
    assert (answer.first_step, answer.next_step, run.next_step, ledger.next_step) == (0, 3, 3, 3)
    assert ledger.bodies == [{"first_step": 0, "attempt": 1, "count": 3}] * 3
    assert keys(ledger) == 1
    assert run.authorize().first_step == 3


def test_request_that_never_arrived_is_repeated_and_final_answer_is_not(run: Run, ledger: FakeLedger) -> None:
    for step, fault in enumerate(NEVER_ARRIVED, start=1):
        ledger.answers(fault)
        assert run.authorize().next_step == step == keys(ledger)
    for status in (400, 401, 403, 404, 409, 413, 415, 422, 500):
        asked = len(ledger.requests)
        ledger.answers(problem(status, "some_code"))
        with pytest.raises(ProblemError):
            run.preview()
        assert len(ledger.requests) == asked + 1


def test_every_post_has_its_own_key_and_reads_have_none(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.fails(Fault.UNHEARD)
    run = client.create_run("icu", budget="mimic/icu-team")
    assert len(ledger.requests) == 2
    for ask in (run.preview, run.authorize, run.authorize, run.pause):
        ask()
    assert keys(ledger) == len(ledger.keys) - 1 == 5
    ledger.answers(*[httpx2.ReadTimeout("no answer")] * 3)
    assert client.get_run(RUN_ID).id == RUN_ID
    assert "Idempotency-Key" not in ledger.requests[-1].headers


def test_pauses_double_up_to_ceiling_and_tries_are_bounded(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.fails(*[Fault.NEVER_SENT] * 20)
    with pytest.raises(LedgerUnavailableError, match="ConnectError: refused") as caught:
        run.authorize()
    assert clock.naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])
    assert (caught.value.attempts, len(ledger.requests), caught.value.in_doubt) == (TRIES, TRIES, False)
    assert caught.value.elapsed == pytest.approx(52.7)
    assert run._transport._retry_policy.pause(5_000, 0.0) == 10.0


def test_jitter_spreads_pauses_from_zero_to_ceiling() -> None:
    with LedgerClient(URL, KEY) as client:
        pauses = [client._transport._retry_policy.pause(3, 0.0) for _ in range(500)]
    assert min(pauses) < 0.1
    assert 0.3 < max(pauses) <= 0.4
    with pytest.raises(ValueError, match="max_attempts"):
        LedgerClient(URL, KEY, max_attempts=0)


def test_whole_time_is_bounded(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.fails(*[Fault.LOST] * TRIES)
    ledger.before = lambda _: clock.sleep(10.0)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert caught.value.attempts < TRIES
    assert clock.seconds <= 60.0 + 10.0
    assert caught.value.in_doubt


def test_retry_after_is_waited_for_where_it_can_be_read(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=7.9), usegmt=True)
    # The ledger's seconds, and the random pause on top.
    waits = {"7": (7.1, 7.1), later: (5.1, 8.1), "Wed, 21 Oct 2015 07:28:00 -0000": (0.1, 0.1)}
    for value, (least, most) in (waits | dict.fromkeys(("soon", "-5", "1.5", ""), (0.1, 0.1))).items():
        ledger.answers(busy(value))
        run.authorize()
        assert least - 1e-9 <= clock.naps[-1] <= most + 1e-9
    naps = len(clock.naps)
    ledger.answers(busy("3600", 429))
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert (caught.value.retry_after, caught.value.attempts, len(clock.naps)) == (3600.0, 1, naps)


def test_rate_limit_is_no_failed_try_and_ends_by_time(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.answers(*[busy("3", 429)] * 3)
    assert run.authorize(2).next_step == ledger.next_step == 2
    assert clock.naps == pytest.approx([3.1, 3.2, 3.4])
    assert keys(ledger) == 1
    ledger.answers(*[busy("1", 429)] * (2 * TRIES))
    began = clock.seconds
    assert run.authorize().next_step == 3
    assert 2 * TRIES <= clock.seconds - began < 60
    ledger.answers(*[busy("1", 429)] * 1000)
    with pytest.raises(LedgerUnavailableError, match="429") as caught:
        run.authorize()
    assert not caught.value.in_doubt
    assert caught.value.elapsed <= 60


# Steps in doubt.


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
    assert (run.next_step, ledger.next_step, keys(ledger)) == (2, 2, 1)
    assert run.authorize(2).next_step == 4
    assert keys(ledger) == 2


def test_settle_charges_steps_in_doubt_that_no_training_released(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger)
    ledger.fails(*[Fault.UNHEARD] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.resolve_in_doubt()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    settled = run.resolve_in_doubt()
    assert settled is not None
    assert (settled.first_step, settled.next_step, keys(ledger)) == (0, 1, 1)
    # It was not released, so it is no step of the training.
    assert (run.next_step, run.step) == (1, None)
    assert run.authorize(2, event=gaussian(9.0)).first_step == 1
    assert run.resolve_in_doubt() is None


def test_settle_of_refused_step_or_of_another_request_charges_nothing(run: Run, ledger: FakeLedger) -> None:
    ledger.capacity = 2
    ledger.answers(*[httpx2.ReadTimeout("no answer")] * TRIES)
    with pytest.raises(LedgerUnavailableError):
        run.authorize(3)
    assert run.resolve_in_doubt() is None
    in_doubt(run, ledger, 2)
    ledger.answers(httpx2.Response(200, json=authorization(5, 1)))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.resolve_in_doubt()
    assert run.next_step == 0
    assert run.resolve_in_doubt() is not None


def test_change_of_state_does_not_renumber_steps_in_doubt(run: Run, ledger: FakeLedger) -> None:
    in_doubt(run, ledger)
    assert (run.refresh().next_step, run.next_step) == (1, 0)
    run.pause()
    run.resume()
    assert run.next_step == 1
    assert run.authorize().first_step == 0
    assert ledger.next_step == 1


DOUBTS: dict[str, tuple[list[Fault | Try], type[BaseException]]] = {
    "interrupt": ([Try(KeyboardInterrupt())], KeyboardInterrupt),
    "500": ([Try(problem(500, "internal_error"))], ProblemError),
    "no JSON": ([Try(httpx2.Response(200, text="<html>"))], UnexpectedResponseError),
    "no authorization": ([Try(httpx2.Response(200, json={"a": 1}))], UnexpectedResponseError),
    "no key at the second try": ([Fault.UNHEARD, Try(problem(401, "unauthenticated"), 0)], ProblemError),
    "pause before the second try": (
        [Fault.UNHEARD, Try(problem(409, "run_state_conflict", run_status="paused"), 0)],
        ProblemError,
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_step_without_usable_answer_stays_in_doubt(run: Run, ledger: FakeLedger, name: str) -> None:
    faults, error = DOUBTS[name]
    ledger.fails(*faults)
    with pytest.raises(error):
        run.authorize()
    with pytest.raises(RequestInDoubtError):
        run.authorize(2)
    assert run.next_step == 0
    assert run.authorize().next_step == ledger.next_step == 1
    assert keys(ledger) == 1


@pytest.mark.parametrize("faults", [[Fault.NEVER_SENT] * TRIES, [Try(problem(401, "unauthenticated"), 0)]])
def test_step_that_surely_had_no_effect_is_not_in_doubt(
    run: Run, ledger: FakeLedger, faults: list[Fault | Try]
) -> None:
    ledger.fails(*faults)
    with pytest.raises((LedgerUnavailableError, ProblemError)):
        run.authorize()
    assert run.authorize(2).next_step == 2


def test_refusal_whose_reply_was_lost_stays_refusal_and_next_call_is_new(run: Run, ledger: FakeLedger) -> None:
    ledger.capacity = 2
    ledger.fails(Fault.UNHEARD)
    with pytest.raises(BudgetExceededError):
        run.authorize(3)
    assert keys(ledger) == 1
    ledger.capacity = 10
    assert run.authorize(3).next_step == 3
    assert keys(ledger) == 2


@pytest.mark.parametrize(
    "changed",
    [
        *({"decision": "refused"}, {"dry_run": True}, {"run": "run_other"}, {"first_step": 5}, {"next_step": 7}),
        {"first_step": 5, "next_step": 6},
    ],
    ids=str,
)
def test_only_admission_of_request_counts(run: Run, ledger: FakeLedger, changed: dict[str, object]) -> None:
    ledger.answers(httpx2.Response(200, json=authorization(0, 1) | changed))
    with pytest.raises(UnexpectedResponseError, match="release nothing"):
        run.authorize()
    assert run.next_step == 0
