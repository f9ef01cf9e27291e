"""The service, as loud as it can be: `python -m tests.api.loud_server serve --port N`.

Every logger at its lowest level, uvicorn's access log and its trace, SQL with its parameters; and a route that fails
with an error whose words hold all that was sent.
"""

import logging
from typing import Any, NoReturn
from unittest.mock import patch

from fastapi import FastAPI, Request

from app import cli, server
from app import main as service
from app.connections import BoundedConfig
from app.logging_config import JsonFormatter

SABOTAGED = "/v1/sabotaged"


def application() -> FastAPI:
    """The application, with a route that fails."""
    app = service.application()

    async def sabotaged(request: Request) -> NoReturn:
        logging.getLogger("sabotage").info("%s was asked for with %r", request.url, request.headers)
        raise RuntimeError(f"{request.method} {request.url} {dict(request.headers)} {await request.body()!r}")

    app.add_route(SABOTAGED, sabotaged, methods=["GET", "POST"])
    return app


def main() -> None:
    """Serve."""
    logging.basicConfig(level=1)
    logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "psycopg.pool", "alembic", "asyncio"):
        logging.getLogger(name).setLevel(1)
    louder = {"log_level": "trace", "access_log": True, "log_config": None}

    def loud(_: str, **options: Any) -> BoundedConfig:  # noqa: ANN401 - as uvicorn takes them
        return BoundedConfig("tests.api.loud_server:application", **options | louder)

    with patch.object(server, "BoundedConfig", loud):
        cli.main()


if __name__ == "__main__":
    main()
