"""A client with the token of a workload: it exchanges it, trains, and renews its keys by itself."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from epsilon_ledger import (
    AsyncLedgerClient,
    AuthenticationError,
    ConfigurationError,
    EventCount,
    LedgerClient,
    LedgerError,
    LedgerUnavailableError,
    gaussian,
    github_actions_token,
    poisson_sampled,
)
from epsilon_ledger._net import workload
from tests.conftest import open_ledger
from tests.identity_provider import IdentityProvider, identity_provider
from tests.sdk.fake_ledger import RUN_ID
from tests.sdk.simulation import BUDGET, LedgerWire
from tests.sdk.wire import URL
from tests.servers import QuietHandler, background_thread
from tests.workloads import issuer_of, issuers_file, workload_token

TERMS: Final[dict[str, Any]] = {"budget": BUDGET, "event": poisson_sampled(0.01, gaussian(1.1))}


@pytest.fixture(scope="module")
def cluster() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def wire(cluster: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerWire]:
    folder = tmp_path_factory.mktemp("ledger")
    with open_ledger(folder, workload_issuers_file=issuers_file(folder, issuer_of(cluster))) as ledger:
        ledger.population()
        ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
        yield LedgerWire(ledger=ledger)


@pytest.fixture
def file(cluster: IdentityProvider, tmp_path: Path) -> Path:
    """A projected token, as a cluster keeps it in a pod."""
    path = tmp_path / "token"
    path.write_text(workload_token(cluster) + "\n")
    return path


def client(wire: LedgerWire, **credential: Any) -> LedgerClient:  # noqa: ANN401 - passed on
    return LedgerClient(URL, transport=wire, **credential)


def answering(answer: Callable[[httpx2.Request], httpx2.Response], **terms: Any) -> LedgerClient:  # noqa: ANN401 - passed on
    return LedgerClient("http://ledger/api", transport=httpx2.MockTransport(answer), **terms)


def scopes(admin: LedgerClient) -> list[str | None]:
    """Scopes of all keys of workloads, oldest first."""
    return [key.scope for key in admin.list_api_keys() if key.single_use][::-1]


def test_keys_of_run_are_exchanged_as_they_end(
    wire: LedgerWire, admin: LedgerClient, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", URL)
    monkeypatch.setenv("EPSILON_LEDGER_TOKEN_FILE", str(file))
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY", raising=False)
    before = len(scopes(admin))
    with LedgerClient(transport=wire) as ledger:
        run = ledger.create_run("model", **TERMS)
        run.authorize()
        assert scopes(admin)[before:] == [run.id], "one key is enough until it ends"
        monkeypatch.setattr(workload, "monotonic", lambda: time.monotonic() + 3600)
        run.authorize()
        run.reserve([EventCount(event=TERMS["event"], count=3)])
        run.renew()
        run.commit(1)
        assert run.next_step == 3
    assert scopes(admin)[before:] == [run.id, run.id]
    with client(wire, token_file=file) as ledger:
        revoked = ledger.create_run("revoked", **TERMS)
        [key] = [key for key in admin.list_api_keys() if key.scope == revoked.id]
        admin.revoke_api_key(key.id)
        time.sleep(1.2)  # as long as the service may know it
        revoked.authorize()
    assert scopes(admin)[before + 2 :] == [revoked.id, revoked.id]


def test_client_trains_several_runs_and_another_pod_resumes_one(wire: LedgerWire, file: Path) -> None:
    with client(wire, token_file=file) as ledger:
        runs = [ledger.create_run(f"job-{number}", **TERMS) for number in range(2)]
        for run in runs:
            run.authorize()
        assert ledger.get_budget(BUDGET).path == BUDGET
    with client(wire, token_file=file) as ledger:
        again = ledger.resume_run(f"{BUDGET}/job-1")
        again.authorize()
    assert (again.id, again.attempt) == (runs[1].id, 2)

    async def train() -> list[int]:
        async with AsyncLedgerClient(URL, token_file=file, transport=wire) as ledger:
            awaited = await asyncio.gather(*(ledger.create_run(f"async-{number}", **TERMS) for number in range(2)))
            return [(await run.authorize()).next_step for run in awaited]

    assert asyncio.run(train()) == [1, 1]


def test_one_key_is_enough_where_the_rule_says_so(wire: LedgerWire, cluster: IdentityProvider) -> None:
    sweep = {"sub": "system:serviceaccount:sweeps:x", "kubernetes.io": {"namespace": "sweeps"}}
    asked: list[str] = []

    def provide() -> str:
        asked.append(workload_token(cluster, **sweep))
        return asked[-1]

    with client(wire, token_provider=provide) as ledger:
        for number in range(3):
            run = ledger.create_run(f"trial-{number}", **TERMS)
            run.authorize()
            run.complete()
        assert ledger.get_budget(BUDGET).path == BUDGET
    assert len(asked) == 1


def test_refused_token_says_why(wire: LedgerWire, cluster: IdentityProvider) -> None:
    expired = workload_token(cluster, exp=int(time.time()) - 1)
    with (
        client(wire, token_provider=lambda: expired) as ledger,
        pytest.raises(AuthenticationError, match="has expired"),
    ):
        ledger.create_run("model", **TERMS)


def test_client_has_one_credential_and_explicit_one_counts_more_than_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[dict[str, Any]] = [{"api_key": "key_1.a"}, {"token_provider": lambda: "x"}]
    for other in given:
        with pytest.raises(ConfigurationError, match="one of"):
            LedgerClient("http://127.0.0.1:1", token_file="x", **other)
    monkeypatch.setenv("EPSILON_LEDGER_TOKEN_FILE", str(tmp_path / "none"))
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Authorization"])
        return httpx2.Response(404, json={})

    for key in ("key_1.a", None):
        if key is None:
            monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "key_2.b")
        with answering(answer, api_key=key) as ledger, pytest.raises(LedgerError):
            ledger.get_run(RUN_ID)
    assert sent == ["Bearer key_1.a", "Bearer key_2.b"]


def test_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content in (None, "", "ä"):
        if content is not None:
            path.write_text(content)
        with (
            answering(lambda _: httpx2.Response(500), token_file=path) as ledger,
            pytest.raises(ConfigurationError, match="token file"),
        ):
            ledger.get_run(RUN_ID)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"access_token": "a", "expires_in": "b", "key": {}}'])
def test_answer_that_is_none_is_tried_again(file: Path, body: str) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200, text=body)

    with answering(answer, token_file=file, max_attempts=2) as ledger, pytest.raises(LedgerUnavailableError):
        ledger.get_run(RUN_ID)
    assert asked == ["/api/v1/token"] * 2


def test_github_gives_token_for_audience(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.answer(200 if "good" in self.path else 500, json.dumps({"value": "eyJ"}).encode())

    provide = github_actions_token("epsilon-ledger")
    with pytest.raises(ConfigurationError, match="id-token: write"):
        provide()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with background_thread(server):
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{url}/good?api=2")
        assert provide() == "eyJ"
        assert asked == [("/good?api=2&audience=epsilon-ledger", "Bearer secret")]
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{url}/bad")
        with pytest.raises(ConfigurationError) as caught:
            provide()
        assert "secret" not in str(caught.value)
