"""Connections that answer plain requests for steps themselves, past ASGI and the framework.

A request is plain if nothing about it needs the framework: see `StepConnection._plain_step` and `_read`. Any other one
is handed on whole, before anything is decided, and then only the usual route answers it. Both ways send the same
bytes. ADR 0015 has the reasons.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from fastapi import FastAPI, Request
from pydantic import TypeAdapter, ValidationError
from uvicorn._types import ASGI3Application
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.accounting.errors import AccountingError
from app.api.links import remember_origin
from app.api.middleware import REQUEST_ID, name_request, record, security_headers
from app.api.problems import EXPECTED_ERRORS, problem_from_exception
from app.api.route import IdempotencyKey
from app.api.routers.steps import admitted_content, step_response
from app.api.schemas.steps import AuthorizeSteps
from app.api.strict_json import strict_loads
from app.connections import BoundedConnection
from app.ledger.decisions import DecisionOutcome
from app.ledger.errors import AttemptSupersededError, LedgerError
from app.logging_config import request_id
from app.service.auth.authentication import Principal
from app.service.auth.credential_cache import BODY_SECONDS, Authenticator
from app.service.auth.rate_limit import TokenBuckets
from app.service.charging.requests import StepResult
from app.service.ledger_store import LedgerStore
from app.service.metrics import TRACES

TEMPLATE: Final = "/v1/runs/{run_id}/steps"
_PATH: Final = re.compile(rb"/v1/runs/([A-Za-z0-9_.~-]+)/steps")
_UNUSUAL: Final = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that the framework or the server acts on."""

_BY_TLS: Final = {"http": False, "https": True, "ws": False, "wss": False}
"""Values of X-Forwarded-Proto that uvicorn takes from a trusted proxy: whether they are HTTPS."""

_IDEMPOTENCY_KEY: Final[TypeAdapter[str | None]] = TypeAdapter(IdempotencyKey)
_SECURITY: Final = {
    by_tls: b"".join(b"%s: %s\r\n" % header for header in security_headers(public=False, by_tls=by_tls))
    for by_tls in (False, True)
}


class _Services(NamedTuple):
    """Parts of the application that answer steps."""

    keys: Authenticator
    rates: TokenBuckets
    store: LedgerStore
    public_url: str | None


@dataclass(slots=True)
class _Step:
    """A plain request, from the end of its head.

    Args:
        cycle: uvicorn's state of the request.
        began_at: by the performance counter.
        names_attempt: whether the body has an attempt.
    """

    cycle: RequestResponseCycle
    run_id: str
    credential: str
    caller: Principal
    key: str | None
    name: bytes
    by_tls: bool
    began_at: float
    names_attempt: bool = True


class StepConnection(BoundedConnection):
    """Connection that answers plain requests for steps, and hands on all others.

    uvicorn's `RequestResponseCycle` exists for these requests as for all, so deadlines, pipelining, disconnection and
    shutdown work as usual; only its task is not started.
    """

    _services: _Services | None = None
    """None: all requests are handed on."""
    _awaited: _Step | None = None
    """The plain request whose body arrives."""
    _by_proxy: bool = False
    """Whether X-Forwarded-Proto is trusted."""
    _defaults: tuple[object, bytes, bool] = (None, b"", False)
    """The server's headers: as given, as sent, and whether they close the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Find the services, unless something between them and the connection would be passed over."""
        super().connection_made(transport)
        app = self.config.loaded_app
        if isinstance(app, ProxyHeadersMiddleware):
            self._by_proxy = self.client is not None and self.client[0] in app.trusted_hosts
            app = app.app
        logged = self.access_log and self.access_logger.isEnabledFor(logging.INFO)
        framed = logged or TRACES.active or self.root_path or self.limit_concurrency is not None
        if isinstance(app, FastAPI) and not framed:
            state = app.state
            self._services = _Services(state.keys, state.rates.keys, state.store, state.public_url)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on a request without its whole body, so that it is recorded as usual."""
        super().connection_lost(exc)
        step, self._awaited = self._awaited, None
        if step is not None:
            super()._start_asgi_task(step.cycle, self.app)

    def on_message_complete(self) -> None:
        """Submit a plain request, or hand it on."""
        super().on_message_complete()
        step, self._awaited = self._awaited, None
        if step is not None and not self._submit(step):
            super()._start_asgi_task(step.cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Wait for the body of a plain request, or hand the request on."""
        self._awaited = self._plain_step(cycle)
        if self._awaited is None:
            super()._start_asgi_task(cycle, app)
        else:
            self._answered = cycle

    def _plain_step(self, cycle: RequestResponseCycle) -> _Step | None:
        """Read a request's head; None: it is not plain."""
        path = _PATH.fullmatch(self.url)
        # A request that waited for others is complete, and the URL may be of a later one.
        if self._services is None or path is None or not cycle.more_body:
            return None
        headers = dict(self.headers)
        if (
            cycle.scope["method"] != "POST"
            or len(headers) < len(self.headers)
            or headers.get(b"content-type") != b"application/json"
            or not 0 < int(headers.get(b"content-length", 0)) <= HIGH_WATER_LIMIT
            or not headers.keys().isdisjoint(_UNUSUAL)
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return None
        credential = headers.get(b"authorization", b"").decode("latin-1")
        caller = self._services.keys.find(credential)
        key = headers.get(b"idempotency-key")
        try:
            key_text = None if key is None else _IDEMPOTENCY_KEY.validate_python(key.decode("latin-1"))
        except ValidationError:
            return None
        if caller is None:
            return None
        by_tls = self.scheme == "https"
        if self._by_proxy and b"x-forwarded-proto" in headers:  # by uvicorn's rule
            by_tls = _BY_TLS.get(headers[b"x-forwarded-proto"].decode("latin-1").strip(), by_tls)
        name = name_request(headers.get(REQUEST_ID))
        return _Step(cycle, path[1].decode(), credential, caller, key_text, name, by_tls, perf_counter())

    def _submit(self, step: _Step) -> bool:
        """Give the request to the commit queue, or return False: the body is not plain."""
        assert self._services is not None, "plain requests need them"
        name = step.name.decode()
        outer = request_id.set(name)
        try:
            body = _read(step.cycle.body)
            slow = perf_counter() - step.began_at > BODY_SECONDS
            if body is None or (slow and not self._is_still_admitted(step)):
                return False
            step.names_attempt = "attempt" in body.model_fields_set
            self._services.rates.take(step.caller.actor)
            store = self._services.store
            context = store.context(step.caller, name)
            store.charges.submit(context, body.request(step.run_id, step.key), partial(self._answer, step))
        except Exception as error:  # noqa: BLE001 - rendered, and logged if it is not expected
            # Later, as if decided: bytes that follow are parsed before an answer that closes the connection.
            self.loop.call_soon(self._answer, step, error)
        finally:
            request_id.reset(outer)
        return True

    def _is_still_admitted(self, step: _Step) -> bool:
        """Look the caller up again after a body that took long; False: the usual route has to ask the database."""
        assert self._services is not None, "plain requests need them"
        caller = self._services.keys.find(step.credential)
        if caller is None:
            return False
        step.caller = caller
        return True

    def _answer(self, step: _Step, outcome: StepResult | Exception) -> None:
        """Send the response to a decision or an error, and record it."""
        outer = request_id.set(step.name.decode())
        try:
            try:
                if isinstance(outcome, StepResult) and outcome.decision.outcome is DecisionOutcome.REFUSED:
                    self._remember_origin(step)
                status, fields, content = _rendered(step, outcome)
            except Exception as error:  # noqa: BLE001 - a decision that cannot be rendered
                outcome = error
                status, fields, content = _rendered(step, error)
            if not step.cycle.disconnected:
                self._send(step, status, fields, content)
            record("POST", TEMPLATE, status, perf_counter() - step.began_at)
            if isinstance(outcome, Exception) and not isinstance(outcome, EXPECTED_ERRORS):
                self.logger.error("Exception in ASGI application\n", exc_info=outcome)  # as uvicorn, which then closes
                self.transport.close()
        finally:
            request_id.reset(outer)

    def _remember_origin(self, step: _Step) -> None:
        """Remember where the browser finds this service: a refusal has the URL of its run's page."""
        assert self._services is not None, "plain requests need them"
        request = Request(step.cycle.scope)  # type: ignore[arg-type] # uvicorn's type
        remember_origin(request, self._services.public_url, by_tls=step.by_tls)

    def _send(self, step: _Step, status: int, fields: bytes, content: bytes) -> None:
        """Write a response, and go on with the connection as uvicorn does."""
        cycle = step.cycle
        if cycle.default_headers is not self._defaults[0]:  # once a second, for the date
            closes = any(name == b"connection" for name, _ in cycle.default_headers)
            self._defaults = (cycle.default_headers, _lines(cycle.default_headers), closes)
        _, defaults, closes = self._defaults
        keeps = cycle.keep_alive and not closes
        self.transport.write(
            b"%b%b%b%bx-request-id: %b\r\n%b\r\n%b"
            % (
                STATUS_LINE[status],
                defaults,
                fields,
                _SECURITY[step.by_tls],
                step.name,
                b"" if keeps or closes else b"connection: close\r\n",
                content,
            )
        )
        cycle.response_started = cycle.response_complete = True
        if not keeps:
            self.transport.close()
        self.on_response_complete()


def _read(content: bytearray) -> AuthorizeSteps | None:
    """Parse a body; None: it is not plain."""
    try:
        return AuthorizeSteps.model_validate(strict_loads(bytes(content)))
    except (LedgerError, AccountingError, ValidationError):
        return None


def _rendered(step: _Step, outcome: StepResult | Exception) -> tuple[int, bytes, bytes]:
    """Render a decision or an error as status, header lines and content."""
    if isinstance(outcome, StepResult):
        if outcome.decision.admitted and not outcome.replayed:  # as `step_response`, without its object
            content = admitted_content(outcome.decision)
            return 200, b"content-length: %d\r\ncontent-type: application/json\r\n" % len(content), content
        response = step_response(outcome)
    else:
        if isinstance(outcome, AttemptSupersededError) and not step.names_attempt:
            outcome = outcome.unnamed()
        response = problem_from_exception(Request(step.cycle.scope), outcome)  # type: ignore[arg-type] # uvicorn's type
    return response.status_code, _lines(response.raw_headers), bytes(response.body)


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)
