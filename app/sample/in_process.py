"""The service's API in this process, with a clock that is set by hand: how the sample ledger gets a past."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from app.configuration.settings import Settings
from app.main import create_app
from app.persistence.clock import Clock, Moment
from app.persistence.database import Database
from app.service.ledger_store import LedgerStore


class SetClock(Clock):
    """A database's clock that shows the time `at`."""

    def __init__(self, at: datetime) -> None:
        super().__init__(None)
        self.at = at

    def moment(self, *, wait: bool = True) -> Moment:
        """Get the time that was set."""
        del wait
        return Moment(self.at, self.at)


class InProcessApi:
    """Requests to an application without a server; its background tasks do not run.

    Args:
        app: the ASGI application.
        loop: runs it, one request after the other.
        database: that it uses.
        clock: of that database.
    """

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop, database: Database, clock: SetClock) -> None:  # noqa: ANN401 - of ASGI
        self._app = app
        self._loop = loop
        self.database = database
        self.clock = clock

    def call(self, method: str, path: str, key: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Send a request; return the status and the JSON of the answer."""
        content = b"" if body is None else json.dumps(body).encode()
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", "host": "sample"} | headers
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 0),
            "server": ("sample", 80),
        }
        return self._loop.run_until_complete(self._exchange(scope, content))

    async def _exchange(self, scope: Mapping[str, Any], content: bytes) -> tuple[int, dict[str, Any]]:
        status, answer = 0, bytearray()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            answer.extend(message.get("body", b""))

        await self._app(dict(scope), receive, send)
        return status, json.loads(bytes(answer) or b"{}")

    def made(self, path: str, key: str, body: object, **headers: str) -> dict[str, Any]:
        """POST a request that must succeed.

        Raises:
            RuntimeError: it was refused.
        """
        status, answer = self.call("POST", path, key, body, **headers)
        if status >= HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"POST {path} was answered with {status}: {answer.get('detail')}")
        return answer


def _without_sync(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.cursor().execute("PRAGMA synchronous = OFF")


@contextmanager
def in_process(settings: Settings, at: datetime) -> Iterator[InProcessApi]:
    """Open an application in this process whose clock shows `at`, on a migrated database."""
    app = create_app(settings)
    store: LedgerStore = app.state.store
    clock = store.database.clock = SetClock(at)
    # Nothing is lost with a throw-away ledger: waiting for the disk would take half the time.
    event.listen(store.database.engine, "connect", _without_sync)
    loop = asyncio.new_event_loop()
    try:
        yield InProcessApi(app, loop, store.database, clock)
    finally:
        loop.run_until_complete(store.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
