"""Requests whose answer has a secret: the ledger keeps none to answer again, so an attempt in doubt is the last one."""

from collections.abc import Callable

import httpx2
import pytest

from epsilon_ledger import ApiKey, LedgerClient, LedgerUnavailableError, Receiver
from tests.sdk.conftest import Clock
from tests.sdk.fake_ledger import FakeLedger, Fault, problem

CALLS: dict[str, Callable[[LedgerClient], ApiKey | Receiver]] = {
    "v1/api-keys": lambda client: client.create_api_key("trainer"),
    "v1/api-keys/key_1/rotate": lambda client: client.rotate_api_key("key_1"),
    "v1/receivers": lambda client: client.create_receiver(url="https://hooks.example.org"),
    "v1/receivers/rcv_1/rotate": lambda client: client.rotate_receiver_secret("rcv_1"),
}
MEMBERS = {
    **dict.fromkeys(("id", "role", "created_by", "url"), "x"),
    "created_at": "2026-11-21T08:00:00Z",
    "types": [],
    "kind": "webhook",
    "addresses": [],
    "single_use": False,
    "key": "key_2.s3cr3t",
    "secret": "whsec_s3cr3t",
}


def answer() -> httpx2.Response:
    return httpx2.Response(201, json=MEMBERS)


@pytest.mark.parametrize("path", CALLS)
def test_request_for_secret_has_no_key_and_repr_hides_secret(
    client: LedgerClient, ledger: FakeLedger, path: str
) -> None:
    ledger.faults.append(Fault(instead=answer()))
    assert "s3cr3t" not in repr(CALLS[path](client))
    [request] = ledger.requests
    assert (request.method, request.url.path) == ("POST", f"/{path}")
    assert "Idempotency-Key" not in request.headers


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize(
    "fault", [httpx2.ReadTimeout("lost"), problem(503, "ledger_unavailable"), httpx2.Response(504)], ids=str
)
def test_attempt_in_doubt_is_last_one(
    client: LedgerClient, ledger: FakeLedger, path: str, fault: httpx2.Response | BaseException
) -> None:
    ledger.faults += [Fault(instead=fault), Fault(instead=answer())]
    with pytest.raises(LedgerUnavailableError, match="after 1 try") as caught:
        CALLS[path](client)
    assert caught.value.in_doubt
    assert len(ledger.requests) == 1


@pytest.mark.parametrize("path", CALLS)
def test_attempt_without_effect_is_repeated(client: LedgerClient, ledger: FakeLedger, clock: Clock, path: str) -> None:
    refused = problem(429, "rate_limited", {"Retry-After": "2"})
    ledger.faults += [Fault(instead=httpx2.ConnectError("refused")), Fault(instead=refused), Fault(instead=answer())]
    CALLS[path](client)
    assert len(ledger.requests) == 3
    assert clock.now >= 2
