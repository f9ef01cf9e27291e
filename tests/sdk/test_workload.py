"""A client with the token of a workload: it exchanges it, trains, and renews its keys by itself."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
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
    PermissionDeniedError,
    gaussian,
    github_actions_token,
    poisson_sampled,
)
from epsilon_ledger._net import workload
from tests.conftest import open_ledger
from tests.identity_provider import IdentityProvider, identity_provider
from tests.sdk.fake_ledger import URL
from tests.sdk.simulation import Wire
from tests.workloads import issuer_of, issuers_file, workload_token

STEP: Final = poisson_sampled(0.01, gaussian(1.1))
BUDGET: Final = "mimic/icu-team"


@pytest.fixture(scope="module")
def cluster() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def wire(cluster: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("ledger")
    with open_ledger(folder, workload_issuers_file=issuers_file(folder, issuer_of(cluster))) as ledger:
        ledger.population()
        ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
        yield Wire(ledger)


@pytest.fixture
def file(cluster: IdentityProvider, tmp_path: Path) -> Path:
    """A projected token, as a cluster keeps it in a pod."""
    path = tmp_path / "token"
    path.write_text(workload_token(cluster) + "\n")
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which keys are renewed."""
    passed = [0.0]

    def move(seconds: float) -> None:
        passed[0] += seconds

    monkeypatch.setattr(workload, "monotonic", lambda: time.monotonic() + passed[0])
    return move


def client(wire: Wire, **credential: Any) -> LedgerClient:  # noqa: ANN401 - passed on
    return LedgerClient(URL, transport=wire, **credential)


def scopes(wire: Wire) -> list[str | None]:
    """Scopes of all keys of workloads, oldest first."""
    with wire.client("admin") as admin:
        return [key.scope for key in admin.list_api_keys() if key.single_use][::-1]


def test_keys_of_run_are_exchanged_as_they_end(
    wire: Wire, file: Path, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", URL)
    monkeypatch.setenv("EPSILON_LEDGER_TOKEN_FILE", str(file))
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY", raising=False)
    before = len(scopes(wire))
    with LedgerClient(transport=wire) as ledger:
        run = ledger.create_run("model", budget=BUDGET, event=STEP)
        run.authorize()
        assert scopes(wire)[before:] == [run.id], "one key is enough until it ends"
        later(3600)
        run.authorize()
        run.reserve([EventCount(event=STEP, count=3)])
        run.renew()
        run.commit(1)
        assert run.next_step == 3
    assert scopes(wire)[before:] == [run.id, run.id]
    with client(wire, token_file=file) as ledger, wire.client("admin") as admin:
        revoked = ledger.create_run("revoked", budget=BUDGET, event=STEP)
        [key] = [key for key in admin.list_api_keys() if key.scope == revoked.id]
        admin.revoke_api_key(key.id)
        time.sleep(1.2)  # as long as the service may know it
        revoked.authorize()
    assert scopes(wire)[before + 2 :] == [revoked.id, revoked.id]


def test_client_trains_several_runs_and_another_pod_resumes_one(wire: Wire, file: Path) -> None:
    with client(wire, token_file=file) as ledger:
        runs = [ledger.create_run(f"job-{number}", budget=BUDGET, event=STEP) for number in range(3)]
        for run in runs:
            run.authorize()
        assert ledger.get_budget(BUDGET).path == BUDGET
    with client(wire, token_file=file) as ledger:
        again = ledger.resume_run(f"{BUDGET}/job-1")
        again.authorize()
    assert (again.id, again.attempt) == (runs[1].id, 2)

    async def train() -> list[int]:
        async with AsyncLedgerClient(URL, token_file=file, transport=wire) as ledger:
            created = (ledger.create_run(f"async-{number}", budget=BUDGET, event=STEP) for number in range(3))
            awaited = await asyncio.gather(*created)
            return [(await run.authorize()).next_step for run in awaited]

    assert asyncio.run(train()) == [1, 1, 1]


def test_one_key_is_enough_where_rule_says_so(wire: Wire, cluster: IdentityProvider) -> None:
    claims = {"sub": "system:serviceaccount:sweeps:x", "kubernetes.io": {"namespace": "sweeps"}}
    asked: list[str] = []

    def provide() -> str:
        asked.append(workload_token(cluster, **claims))
        return asked[-1]

    with client(wire, token_provider=provide) as ledger:
        for number in range(3):
            ledger.create_run(f"trial-{number}", budget=BUDGET, event=STEP).authorize()
    assert len(asked) == 1


def test_refused_token_and_run_elsewhere_are_errors(wire: Wire, cluster: IdentityProvider, file: Path) -> None:
    def expired() -> str:
        return workload_token(cluster, exp=int(time.time()) - 1)

    with client(wire, token_provider=expired) as ledger, pytest.raises(AuthenticationError, match="has expired"):
        ledger.create_run("model", budget=BUDGET, event=STEP)
    wire.ledger.budget("other-team")
    elsewhere = wire.ledger.run("mimic/other-team")
    with client(wire, token_file=file) as ledger, pytest.raises(PermissionDeniedError):
        ledger.get_run(elsewhere)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"api_key": "key_1.a", "token_file": "x"}, "one of"),
        ({"token_file": "x", "token_provider": lambda: "x"}, "one of"),
    ],
)
def test_client_has_one_credential(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LedgerClient("http://127.0.0.1:1", **given)  # type: ignore[arg-type]


def test_explicit_key_counts_more_than_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_TOKEN_FILE", str(tmp_path / "none"))
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Authorization"])
        return httpx2.Response(404, json={})

    for environment in ({}, {"EPSILON_LEDGER_API_KEY": "key_2.b"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        key = None if environment else "key_1.a"
        with (
            LedgerClient("http://ledger", key, transport=httpx2.MockTransport(answer)) as ledger,
            pytest.raises(LedgerError),
        ):
            ledger.get_run("run_19aa5b3c4d7b0c1")
    assert sent == ["Bearer key_1.a", "Bearer key_2.b"]


@pytest.mark.parametrize("content", [None, "", "ä"])
def test_token_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with (
        LedgerClient(
            "http://ledger", token_file=path, transport=httpx2.MockTransport(lambda _: httpx2.Response(500))
        ) as ledger,
        pytest.raises(ConfigurationError, match="token file"),
    ):
        ledger.get_run("run_19aa5b3c4d7b0c1")


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"access_token": "a", "expires_in": "b", "key": {}}'])
def test_answer_that_is_none_is_tried_again(file: Path, body: str) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200, text=body)

    with (
        LedgerClient(
            "http://ledger/api", token_file=file, max_attempts=2, transport=httpx2.MockTransport(answer)
        ) as ledger,
        pytest.raises(LedgerUnavailableError),
    ):
        ledger.get_run("run_19aa5b3c4d7b0c1")
    assert asked == ["/api/v1/token"] * 2


def test_github_gives_token_for_audience(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(200 if "good" in self.path else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"value": "eyJ"}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    provide = github_actions_token("epsilon-ledger")
    with pytest.raises(ConfigurationError, match="id-token: write"):
        provide()
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"http://127.0.0.1:{server.server_port}/good?api=2")
    assert provide() == "eyJ"
    assert asked == [("/good?api=2&audience=epsilon-ledger", "Bearer secret")]
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"http://127.0.0.1:{server.server_port}/bad")
    with pytest.raises(ConfigurationError) as caught:
        provide()
    assert "secret" not in str(caught.value)
    server.shutdown()
    server.server_close()
