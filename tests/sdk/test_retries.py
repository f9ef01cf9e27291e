"""A request is sent until it is answered, and has one effect."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from epsilon_ledger import (
    LedgerClient,
    LedgerError,
    LedgerUnavailableError,
    ProblemError,
    Run,
)
from tests.sdk.conftest import Clock
from tests.sdk.fake_ledger import RUN_ID, TRIES, FakeLedger, Fault, problem

LOST_ON_THE_WAY_BACK = [
    httpx2.ReadTimeout("no answer"),
    httpx2.ReadError("reset"),
    httpx2.RemoteProtocolError("Server disconnected without sending a response."),
    problem(502, "bad_gateway"),
    problem(503, "ledger_unavailable"),
    httpx2.Response(504, text="<html>proxy</html>"),
]
NEVER_ARRIVED = [
    httpx2.ConnectError("refused"),
    httpx2.ConnectTimeout("nobody there"),
    httpx2.PoolTimeout("all in use"),
    problem(429, "too_many_requests"),
]


def test_a_reply_that_is_lost_after_the_admission_charges_once(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(after=httpx2.ReadTimeout("no answer")))
    answer = run.authorize(3)
    assert (answer.first_step, answer.next_step) == (0, 3)
    assert (run.next_step, ledger.next_step) == (3, 3)
    assert len(ledger.requests) == 2
    assert len(set(ledger.keys)) == 1
    assert ledger.bodies == [{"first_step": 0, "attempt": 1, "count": 3}] * 2
    assert run.authorize().first_step == 3


@pytest.mark.parametrize("fault", LOST_ON_THE_WAY_BACK, ids=str)
def test_whatever_may_have_arrived_is_sent_again_under_the_same_key(
    run: Run, ledger: FakeLedger, fault: httpx2.Response | Exception
) -> None:
    ledger.faults.extend([Fault(after=fault), Fault(after=fault)])
    assert run.authorize().next_step == 1
    assert len(ledger.requests) == 3
    assert len(set(ledger.keys)) == 1
    assert ledger.next_step == 1


@pytest.mark.parametrize("fault", NEVER_ARRIVED, ids=str)
def test_whatever_never_arrived_is_sent_again(run: Run, ledger: FakeLedger, fault: httpx2.Response | Exception) -> None:
    ledger.faults.append(Fault(instead=fault))
    assert run.authorize().next_step == 1
    assert len(set(ledger.keys)) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 500])
def test_an_answer_that_is_final_is_not_asked_for_again(run: Run, ledger: FakeLedger, status: int) -> None:
    ledger.faults.append(Fault(instead=problem(status, "some_code")))
    with pytest.raises(ProblemError):
        run.authorize()
    assert len(ledger.requests) == 1


def test_every_post_has_a_key_of_its_own_and_reads_have_none(client: LedgerClient, ledger: FakeLedger) -> None:
    run = client.create_run("icu", budget="mimic/icu-team")
    run.preview()
    run.authorize()
    run.authorize()
    run.pause()
    keys = ledger.keys
    assert len(keys) == len(set(keys)) == 5
    client.get_run(RUN_ID)
    assert "Idempotency-Key" not in ledger.requests[-1].headers


def test_pauses_double_up_to_a_ceiling_and_tries_are_bounded(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.extend([Fault(instead=httpx2.ConnectError("refused"))] * 20)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert clock.naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])
    assert (caught.value.attempts, len(ledger.requests)) == (TRIES, TRIES)
    assert caught.value.elapsed == pytest.approx(52.7)
    assert not caught.value.in_doubt
    assert "ConnectError: refused" in str(caught.value)


def test_no_single_pause_is_longer_than_the_ceiling(client: LedgerClient) -> None:
    patience = client._transport._retry_policy
    assert patience.pause(50, 0.0) == 10.0
    assert patience.pause(5_000, 0.0) == 10.0


def test_jitter_spreads_pauses_from_zero_to_the_ceiling() -> None:
    with LedgerClient("http://ledger.test", "key") as client:
        pauses = [client._transport._retry_policy.pause(3, 0.0) for _ in range(500)]
    assert min(pauses) < 0.1
    assert 0.3 < max(pauses) <= 0.4


def test_the_whole_time_is_bounded(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    def slow(_: httpx2.Request) -> httpx2.Response:
        clock.now += 10.0
        raise httpx2.ReadTimeout("no answer")

    run._transport._http = httpx2.MockTransport(slow)
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert caught.value.attempts < TRIES
    assert clock.now <= 60.0 + 10.0
    assert caught.value.in_doubt
    assert not ledger.requests


@pytest.mark.parametrize(
    "value",
    [lambda: "7", lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=7.9), usegmt=True)],
    ids=["seconds", "date"],
)
def test_retry_after_is_honoured(run: Run, ledger: FakeLedger, clock: Clock, value: Callable[[], str]) -> None:
    ledger.faults.append(Fault(instead=problem(503, "ledger_unavailable", {"Retry-After": value()})))
    run.authorize()
    # The ledger's seconds, and the random pause on top.
    assert 6.0 < clock.naps[0] - 0.1 < 8.0


def test_a_date_in_the_past_means_at_once(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.append(Fault(instead=problem(503, "x", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 -0000"})))
    run.authorize()
    assert clock.naps == pytest.approx([0.1])


def test_a_retry_after_beyond_the_time_allowed_ends_the_matter(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    ledger.faults.append(Fault(instead=problem(429, "slow_down", {"Retry-After": "3600"})))
    with pytest.raises(LedgerUnavailableError) as caught:
        run.authorize()
    assert (caught.value.retry_after, caught.value.attempts) == (3600.0, 1)
    assert clock.naps == []


@pytest.mark.parametrize("value", ["soon", "-5", "1.5", ""])
def test_an_unreadable_retry_after_is_ignored(run: Run, ledger: FakeLedger, clock: Clock, value: str) -> None:
    ledger.faults.append(Fault(instead=problem(503, "ledger_unavailable", {"Retry-After": value})))
    run.authorize()
    assert clock.naps == pytest.approx([0.1])


def test_reads_and_creations_are_retried_too(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.ReadTimeout("no answer"))] * 3)
    assert client.get_run(RUN_ID).id == RUN_ID
    ledger.requests.clear()
    ledger.faults.append(Fault(after=httpx2.ReadTimeout("no answer")))
    assert client.create_run("icu", budget="mimic/icu-team").id == RUN_ID
    assert len(set(ledger.keys)) == 1


def test_at_least_one_try_is_demanded() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        LedgerClient("http://ledger.test", "key", max_attempts=0)


def test_every_failure_is_a_ledger_error(run: Run, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.ConnectError("refused"))] * TRIES)
    with pytest.raises(LedgerError):
        run.authorize()


def test_a_ledger_that_asks_for_patience_gets_it_and_the_step_counts_once(
    run: Run, ledger: FakeLedger, clock: Clock
) -> None:
    ledger.faults.extend([Fault(instead=problem(429, "rate_limited", {"Retry-After": "3"}, retry_after=3))] * 3)
    assert run.authorize(2).next_step == 2
    assert clock.naps == pytest.approx([3.1, 3.2, 3.4])
    assert len(set(ledger.keys)) == 1
    assert ledger.next_step == 2


def test_being_held_up_is_no_failed_try_and_ends_by_time(run: Run, ledger: FakeLedger, clock: Clock) -> None:
    held_up = Fault(instead=httpx2.Response(429, headers={"Retry-After": "1"}, json={}))
    ledger.faults.extend([held_up] * (2 * TRIES))
    began = clock.now
    assert run.authorize().next_step == 1
    assert 2 * TRIES <= clock.now - began < 60
    ledger.faults.extend([held_up] * 1000)
    with pytest.raises(LedgerUnavailableError, match="429") as caught:
        run.authorize()
    assert not caught.value.in_doubt
    assert caught.value.elapsed <= 60
