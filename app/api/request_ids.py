"""Request ids, in responses, logs and audit entries."""

import re
import secrets
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logging_config
from app.persistence.tables import REQUEST_ID_LENGTH

HEADER: Final = b"x-request-id"
_PLACE: Final = "epsilon_ledger.request_id"
_READABLE: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,%d}" % REQUEST_ID_LENGTH)


class RequestIds:
    """Middleware that adopts a plain X-Request-Id or generates one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the request's id, and add it to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = [value for name, value in scope["headers"] if name == HEADER]
        plain = len(sent) == 1 and _READABLE.fullmatch(sent[0])
        request_id = sent[0] if plain else b"req_" + secrets.token_hex(8).encode()
        scope[_PLACE] = name = request_id.decode()
        logging_config.request_id.set(name)  # for the rest of this request's task

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, request_id)]
            await send(message)

        await self._app(scope, receive, send_named)


def request_id_of(scope: Scope) -> str:
    """Return the id of a request."""
    request_id: str = scope[_PLACE]
    return request_id
