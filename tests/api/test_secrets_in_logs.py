"""No secret stands in any line of the log, wherever it was sent, whatever went wrong, and however loud the log is."""

import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import httpx2
import pytest

from app.logging_config import HIDDEN, install_redaction, redact_secrets
from tests.api.loud_server import SABOTAGED
from tests.api.operations import NOWHERE, OPERATIONS
from tests.conftest import LiveServer
from tests.identity_provider import IdentityProvider, identity_provider

PASSWORD = "hush-Hush%21hush"
KEY = f"key_0123456789abcdef.{secrets.token_urlsafe(32)}"
WEB_TOKEN = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzb21lYm9keSJ9.c2lnbmF0dXJl"
SPACED_TOKEN = "eyAiYWxnIjogIm5vbmUiIH0.eyAic3ViIjogInNvbWVib2R5IiB9"
"""A token whose parts are JSON with spaces in it."""


def _places(key: str) -> Iterator[dict[str, object]]:
    """Every place of a request in which somebody may put a key, as arguments of `request`."""
    secret = key.partition(".")[2]
    good = {"Authorization": f"Bearer {key}"}
    yield {"headers": good}
    for value in (
        f"Basic {key}",
        f"Bearer  {key}x",
        key,
        f"bearer {secret}",
        f"Bearer {key}, {key}",
        f"Token {secret}",
    ):
        yield {"headers": {"Authorization": value}}
    yield {"headers": [("Authorization", f"Bearer {key}"), ("Authorization", f"Bearer {key}")]}
    for name in ("X-Api-Key", "Idempotency-Key", "If-None-Match", "Content-Type", "X-Forwarded-For", "Referer"):
        yield {"headers": good | {name: key}}
    yield {"headers": good | {"Cookie": f"session={key}; token={secret}"}}
    for name in ("api_key", "key", "token", "after", "access_token", key, secret):
        yield {"headers": good, "params": {name: key}}
        yield {"params": {name: secret}}
    for name in ("name", "budget", "event", key):
        yield {"headers": good, "content": json.dumps({name: key}).encode()}
        yield {"headers": good | {"Content-Type": "application/json"}, "content": json.dumps({name: key}).encode()}
    yield {"headers": good | {"Content-Type": "application/json"}, "content": f"{{{key}".encode()}


def _paths(key: str) -> Iterator[str]:
    """Paths with a key in them."""
    for written in (key, key.partition(".")[2], quote(key).replace(".", "%2E"), quote(key).replace("_", "%5f")):
        yield f"/v1/runs/{written}"
        yield f"/v1/runs/{written}/steps"
        yield f"/{written}"
        yield f"/v1/runs?key={written}"
        yield f"{SABOTAGED}?after=1&{written}"


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[LiveServer]:
    """A server that logs all it can."""
    with pytest.MonkeyPatch.context() as patch:
        server = LiveServer(tmp_path_factory.mktemp("loud"), module="tests.api.loud_server")
        server.key("admin")
        for name, value in provider.settings().items():
            patch.setenv(f"EPSILON_LEDGER_{name.upper()}", str(value))
        patch.setenv("EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND", "0")
        server.start()
    yield server
    server.stop()


def _asked(loud: LiveServer) -> httpx2.Client:
    apart = httpx2.Limits(max_keepalive_connections=0)  # uvicorn closes the connection behind an error
    return httpx2.Client(base_url=loud.url, timeout=60, trust_env=False, limits=apart)


def test_no_secret_is_logged(loud: LiveServer) -> None:
    seen = set()
    with _asked(loud) as http:
        for key in (loud.key("admin"), KEY, WEB_TOKEN):
            for turn, place in enumerate(_places(key)):
                for method, path in (("GET", "/v1/runs") if turn % 2 else ("POST", "/v1/runs"), ("POST", SABOTAGED)):
                    seen.add(http.request(method, path, **place).status_code)  # type: ignore[arg-type]
            for turn, path in enumerate(_paths(key)):
                seen.add(http.get(path, headers={"Authorization": f"Bearer {key}"} if turn % 2 else {}).status_code)
        for operation in OPERATIONS[::4]:
            headers = {"Authorization": f"Bearer {KEY}"}
            seen.add(http.request(operation.method, operation.at(**NOWHERE), headers=headers).status_code)
    assert {200, 401, 404, 415, 422, 500} <= seen
    log = loud.log()
    for loudly in ("GET /v1/runs", "HTTP connection made", "RuntimeError", "sabotage", "SELECT", HIDDEN):
        assert loudly in log, loudly
    for key in (loud.key("admin"), KEY):
        assert key.partition(".")[2] not in log
    assert WEB_TOKEN not in unquote(log)
    assert "hush" not in log.casefold()


def test_token_of_a_person_and_its_claims_are_not_logged(loud: LiveServer, provider: IdentityProvider) -> None:
    tokens = [provider.token(), provider.token("ES256", iss="https://other.example", header={"kid": "unknown"})]
    tokens.append(provider.token(groups=["strangers-of-the-house"]))
    with _asked(loud) as http:
        seen = {
            http.request(method, path, **place).status_code  # type: ignore[arg-type]
            for token in tokens
            for place in _places(token)
            for method, path in (("GET", "/v1/runs"), ("POST", SABOTAGED))
        }
    assert {200, 401, 500} <= seen
    log = unquote(loud.log())
    for token in tokens:
        assert not [part for part in token.split(".") if part in log]
    for said in ("marie.curie", "strangers-of-the-house", "other.example"):
        assert said not in log


def test_database_that_does_not_let_us_in_costs_no_password(tmp_path: Path) -> None:
    """`serve` ends with a sentence where no database answers."""
    url = f"postgresql://ledger:{PASSWORD}@127.0.0.1:1/ledger?password={PASSWORD}&sslpassword={PASSWORD}"
    server = LiveServer(tmp_path, url, module="tests.api.loud_server")
    with pytest.raises(AssertionError):
        server.start()
    assert "refused" in server.log()
    assert "ledger_unavailable" not in server.log()
    assert "hush" not in server.log().casefold()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"GET /v1/runs?key={KEY} 200", f"GET /v1/runs?key={HIDDEN} 200"),
        (f"Bearer {KEY[:-3]}", HIDDEN),
        ("connecting to postgresql://ledger:a:b@db/ledger", f"connecting to postgresql://{HIDDEN}@db/ledger"),
        ("host=db password='x' dbname=l", "host=db password='x' dbname=l"),
        ("host=db password=x dbname=l", f"host=db password={HIDDEN} dbname=l"),
        (f"token={WEB_TOKEN}", f"token={HIDDEN}"),
        (f"token={SPACED_TOKEN}.", f"token={HIDDEN}"),
        (f"token={SPACED_TOKEN}.c2lnbmF0dXJl, newest.version", f"token={HIDDEN}, newest.version"),
        ("run_1a200683e8aec2f", "run_1a200683e8aec2f"),
        ("key_1a200683e8aec2fccf356aaf8dc is known", "key_1a200683e8aec2fccf356aaf8dc is known"),
        ("a" * 64, "a" * 64),
        ("http://127.0.0.1:8000/v1/runs, mail to a@b", "http://127.0.0.1:8000/v1/runs, mail to a@b"),
    ],
    ids=map(str, range(12)),  # the key is another one in each process
)
def test_secrets_are_redacted_from_text(text: str, left: str) -> None:
    assert redact_secrets(text) == left


def _said(caplog: pytest.LogCaptureFixture) -> str:
    return logging.Formatter("%(message)s").format(caplog.records[-1])


def test_records_stay_what_they_were_but_for_secrets(caplog: pytest.LogCaptureFixture) -> None:
    install_redaction()
    install_redaction()
    logger = logging.getLogger("tests.secrets")
    logger.error("%d of %s, %r, %.1f", 3, "these", {"a": 1}, 0.5)
    assert _said(caplog) == "3 of these, {'a': 1}, 0.5"
    logger.error("%s", {"a": KEY})
    assert _said(caplog) == f"{{'a': '{HIDDEN}'}}"
    half = len(KEY) // 2
    logger.error("%s%s", KEY[:half], KEY[half:])
    assert _said(caplog) == HIDDEN
    logger.error("%(name)s at postgresql://%(user)s:%(word)s@db", {"name": KEY, "user": "u", "word": "hush"})
    assert _said(caplog) == f"{HIDDEN} at postgresql://{HIDDEN}@db"
    logger.error(f"{KEY} and no %s")  # noqa: G004 - as somebody may write it
    assert _said(caplog) == f"{HIDDEN} and no %s"
    logger.error("%d and %s", KEY)  # noqa: PLE1206 - as somebody may write it
    assert KEY not in _said(caplog)
    logger.error("It failed", exc_info=ValueError(f"not {KEY}"))
    assert _said(caplog).startswith("It failed\n")
    assert _said(caplog).endswith(f"ValueError: not {HIDDEN}")
