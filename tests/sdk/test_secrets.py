"""Requests whose answer has a secret: the ledger keeps none to answer again, so an attempt in doubt is the last one."""

from collections.abc import Callable

import httpx2
import pytest

from epsilon_ledger import ApiKey, LedgerClient, LedgerUnavailableError, Receiver
from tests.sdk.fake_ledger import FakeLedger, problem
from tests.sdk.test_retries import LOST_ON_THE_WAY_BACK
from tests.sdk.wire import Clock

CALLS: dict[str, Callable[[LedgerClient], ApiKey | Receiver]] = {
    "v1/api-keys": lambda client: client.create_api_key("trainer"),
    "v1/api-keys/key_1/rotate": lambda client: client.rotate_api_key("key_1"),
    "v1/receivers": lambda client: client.create_receiver(url="https://hooks.example.org"),
    "v1/receivers/rcv_1/rotate": lambda client: client.rotate_receiver_secret("rcv_1"),
}
PLAIN = {"created_at": "2026-11-21T08:00:00Z", "types": [], "kind": "webhook", "addresses": [], "single_use": False}
SECRETS = {"key": "key_2.s3cr3t", "secret": "whsec_s3cr3t"}
MEMBERS = dict.fromkeys(("id", "created_by", "url"), "x") | {"role": "trainer"} | PLAIN | SECRETS


@pytest.mark.parametrize("path", CALLS)
def test_attempt_in_doubt_is_last_one_and_one_without_effect_is_repeated(
    client: LedgerClient, ledger: FakeLedger, clock: Clock, path: str
) -> None:
    for fault in LOST_ON_THE_WAY_BACK:
        ledger.answers(fault)
        with pytest.raises(LedgerUnavailableError, match="after 1 try") as caught:
            CALLS[path](client)
        assert caught.value.in_doubt
    assert len(ledger.requests) == len(LOST_ON_THE_WAY_BACK)
    refused = problem(429, "rate_limited", {"Retry-After": "2"})
    ledger.answers(httpx2.ConnectError("refused"), refused, httpx2.Response(201, json=MEMBERS))
    assert "s3cr3t" not in repr(CALLS[path](client))
    assert len(ledger.requests) == len(LOST_ON_THE_WAY_BACK) + 3
    assert clock.seconds >= 2
    for request in ledger.requests:
        assert (request.method, request.url.path) == ("POST", f"/{path}")
        assert "Idempotency-Key" not in request.headers
