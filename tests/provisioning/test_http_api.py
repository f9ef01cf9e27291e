"""Requests: repeated where that is safe, once where it is not, and errors in one sentence."""

import httpx2
import pytest

from app.provisioning.errors import ProvisioningError
from app.provisioning.http_api import MAX_ATTEMPTS, HttpApi, RefusalError, ServerError

Reply = httpx2.Response | Exception


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("app.provisioning.http_api.time.sleep", found.append)
    return found


def _api(*replies: Reply) -> tuple[HttpApi, list[httpx2.Request]]:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        reply = replies[min(len(seen), len(replies) - 1)]
        seen.append(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return HttpApi("http://ledger.example/", "key_1.secret", httpx2.MockTransport(answer)), seen


def _problem(status: int, code: str = "ledger_unavailable", **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json={"code": code, "detail": "No."}, headers=headers)


def test_lost_answer_is_requested_again_with_the_same_idempotency_key(naps: list[float]) -> None:
    late = _problem(429, **{"Retry-After": "7"})
    api, seen = _api(httpx2.ReadError("lost"), _problem(503), late, httpx2.Response(201, json={}))
    assert api.post("budgets", {"name": "a"}) == (201, {})
    assert len(seen) == 4
    assert len({request.headers["Idempotency-Key"] for request in seen}) == 1
    api.post("budgets", {})
    assert seen[4].headers["Idempotency-Key"] != seen[0].headers["Idempotency-Key"]
    assert seen[0].url == "http://ledger.example/v1/budgets"
    assert seen[0].headers["Authorization"] == "Bearer key_1.secret"
    assert naps[-1] == 7


@pytest.mark.parametrize("reply", [httpx2.ReadError("lost"), httpx2.ReadTimeout("slow"), _problem(503)])
def test_secret_is_never_created_twice(reply: Reply, naps: list[float]) -> None:
    api, seen = _api(reply)
    with pytest.raises(ServerError):
        api.post_for_secret("api-keys", {})
    assert (len(seen), "Idempotency-Key" in seen[0].headers, naps) == (1, False, [])


@pytest.mark.parametrize("reply", [httpx2.ConnectError("refused"), _problem(429)])
def test_request_that_never_arrived_is_sent_again(reply: Reply, naps: list[float]) -> None:
    api, seen = _api(reply, httpx2.Response(201, json={"key": "k"}))
    assert api.post_for_secret("api-keys", {}) == {"key": "k"}
    assert (len(seen), len(naps)) == (2, 1)


@pytest.mark.parametrize(
    ("reply", "said", "attempts"),
    [
        (httpx2.ConnectError("refused"), "ledger.example does not answer GET /v1/policy: refused.", MAX_ATTEMPTS),
        (_problem(503), "http://ledger.example answered 503: No. (ledger_unavailable)", MAX_ATTEMPTS),
        (_problem(500, "internal_error"), "answered 500: No. (internal_error)", 1),
        (_problem(401, "unauthenticated"), "answered 401: No. (unauthenticated)", 1),
        (httpx2.Response(404, text="<html>"), "answered 404: is this the address of a ledger?", 1),
        (httpx2.Response(200, text="<html>"), "answered 200: is this the address of a ledger?", 1),
        (httpx2.Response(302), "answered 302: is this the address of a ledger?", 1),
        (httpx2.Response(404, json=[1]), "is this the address of a ledger?", 1),
    ],
)
def test_unusable_server_is_reported_in_one_sentence(reply: Reply, said: str, attempts: int, naps: list[float]) -> None:
    api, seen = _api(reply)
    with pytest.raises(ServerError) as failed:
        api.get("policy")
    assert said in str(failed.value)
    assert "secret" not in str(failed.value)
    assert (len(seen), len(naps)) == (attempts, attempts - 1)


def test_refusal_keeps_its_status() -> None:
    api, _ = _api(_problem(412, "precondition_failed"))
    with pytest.raises(RefusalError) as refused:
        api.change("PUT", "policy", {}, etag='"1"')
    assert (refused.value.status, str(refused.value)) == (412, "No. (precondition_failed)")


def test_list_is_read_to_its_end() -> None:
    pages = ({"items": [1, 2], "next": "c"}, {"items": [3], "next": None})
    api, seen = _api(*(httpx2.Response(200, json=page) for page in pages))
    assert list(api.items("proposals", status="open")) == [1, 2, 3]
    assert dict(seen[1].url.params) == {"limit": "200", "status": "open", "after": "c"}


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("", "k", "Set EPSILON_LEDGER_URL"),
        ("http://x", "", "Set EPSILON_LEDGER_API_KEY"),
        ("ledger.example", "k", "must look like https://ledger.example.org"),
        ("http://ada:pw@ledger.example", "k", "without credentials"),
        ("http://x:y", "k", "is not a URL"),
        ("http://x", "a\nb", "a line break"),
    ],
)
def test_missing_or_malformed_variable_is_named(url: str, key: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", key)
    with pytest.raises(ProvisioningError, match=said):
        HttpApi.from_environment()
