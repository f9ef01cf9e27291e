"""No secret stands in any line of the log, wherever it was sent, whatever went wrong, and however loud the log is."""

import json
import logging
import secrets
from collections.abc import Iterator
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, unquote

import httpx2
import pytest
from fastapi import FastAPI, Request
from uvicorn.middleware.message_logger import MessageLoggerMiddleware
from uvicorn.server import ServerState

from app.logging_config import HIDDEN, JsonFormatter, install_redaction, redact_secrets
from tests.api.operations import NOWHERE, OPERATIONS
from tests.api.step_routes import listening
from tests.api.test_oidc_tokens import provider
from tests.conftest import LiveServer
from tests.identity_provider import IdentityProvider

__all__ = ["provider"]

SABOTAGED = "/v1/sabotaged"
"""A route that fails with an error whose words hold all that was sent."""

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
    others = (f"Basic {key}", f"Bearer  {key}x", key, f"bearer {secret}", f"Bearer {key}, {key}", f"Token {secret}")
    for value in others:
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


LOGGERS = ["", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "asyncio"]
LOGGERS += ["uvicorn.error", "uvicorn.access", "uvicorn.asgi"]


async def _sabotaged(request: Request) -> NoReturn:
    logging.getLogger("sabotage").info("%s was asked for with %r", request.url, request.headers)
    raise RuntimeError(f"{request.method} {request.url} {dict(request.headers)} {await request.body()!r}")


Loud = tuple[httpx2.Client, StringIO, str]
"""A client of a service, all that it has logged, and the key of its admin."""


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[Loud]:
    """Every logger at its lowest level, with uvicorn's accesses and its trace, and SQL with its parameters."""
    handler = logging.StreamHandler(StringIO())
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: not record.name.startswith("http"))  # of the client, which is not the service
    apart = httpx2.Limits(max_keepalive_connections=0)  # uvicorn closes the connection behind an error
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:  # an engine asks its logger when it is made
        each.setLevel(1)
        each.propagate = True  # whatever a library has set in this process
    loggers[0].addHandler(handler)
    with provider.open_ledger(tmp_path_factory.mktemp("loud")) as ledger:
        app = ledger.http.app
        assert isinstance(app, FastAPI)
        app.add_route(SABOTAGED, _sabotaged, methods=["GET", "POST"])
        traced = MessageLoggerMiddleware(app)  # type: ignore[arg-type] # any application
        with (
            listening(traced, ServerState(), ledger.http.portal) as port,
            httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, limits=apart) as http,
        ):
            for each in loggers:  # the server has set its own
                each.setLevel(1)
            yield http, handler.stream, ledger.keys["hospital", "admin"]
    loggers[0].removeHandler(handler)
    for each, (level, propagate) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.propagate = propagate


TURNS = (("GET", "/v1/runs"), ("POST", SABOTAGED), ("POST", "/v1/runs"), ("POST", SABOTAGED))


def test_no_secret_is_logged(loud: Loud) -> None:
    seen: set[int] = set()
    turns, (http, lines, admin) = cycle(TURNS), loud
    for key in (admin, KEY, WEB_TOKEN):
        next(turns)  # so that a place which failed with one key is answered with the next
        for place in _places(key):
            seen.add(http.request(*next(turns), **place).status_code)  # type: ignore[arg-type]
        for turn, path in enumerate(_paths(key)):
            seen.add(http.get(path, headers={"Authorization": f"Bearer {key}"} if turn % 2 else {}).status_code)
    for operation in OPERATIONS[::4]:
        headers = {"Authorization": f"Bearer {KEY}"}
        seen.add(http.request(operation.method, operation.at(**NOWHERE), headers=headers).status_code)
    assert {200, 401, 404, 415, 422, 500} <= seen
    log = lines.getvalue()
    for loudly in ("GET /v1/runs", "HTTP connection made", "RuntimeError", "sabotage", "SELECT", HIDDEN):
        assert loudly in log, loudly
    for key in (admin, KEY):
        assert key.partition(".")[2] not in log
    assert WEB_TOKEN not in unquote(log)
    assert "hush" not in log.casefold()


def test_token_of_a_person_and_its_claims_are_not_logged(loud: Loud, provider: IdentityProvider) -> None:
    tokens = [provider.token(), provider.token("ES256", iss="https://other.example", header={"kid": "unknown"})]
    tokens.append(provider.token(groups=["strangers-of-the-house"]))
    seen: set[int] = set()
    turns, (http, lines, _) = cycle(TURNS[:2]), loud
    for token in tokens:
        next(turns)
        for place in _places(token):
            seen.add(http.request(*next(turns), **place).status_code)  # type: ignore[arg-type]
    assert {200, 401, 500} <= seen
    log = unquote(lines.getvalue())
    for token in tokens:
        assert not [part for part in token.split(".") if part in log]
    for said in ("marie.curie", "strangers-of-the-house", "other.example"):
        assert said not in log


def test_database_that_does_not_let_us_in_costs_no_password(tmp_path: Path) -> None:
    """`serve` ends with a sentence where no database answers."""
    url = f"postgresql://ledger:{PASSWORD}@127.0.0.1:1/ledger?password={PASSWORD}&sslpassword={PASSWORD}"
    server = LiveServer(tmp_path, url, environment={"EPSILON_LEDGER_LOG_LEVEL": "debug"})
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
