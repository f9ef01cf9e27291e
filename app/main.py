"""The application: wiring only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from app.api import problems
from app.api.openapi import describe
from app.api.routers import accounts, health, planning, runs
from app.persistence.engine import Database
from app.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Wire the service together.

    Args:
        settings: where the database is.

    Returns:
        An ASGI application that closes its database when it stops.

    Raises:
        InvalidInputError: the database URL is not one that this version supports.
    """
    database = Database(settings.database_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        database.dispose()

    app = FastAPI(
        title="Epsilon Ledger",
        summary="Privacy budgets, kept the way a bank keeps accounts",
        version=version("epsilon-ledger"),
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.database = database
    problems.install(app)
    for module in (accounts, runs, planning, health):
        app.include_router(module.routes)
    describe(app)
    return app
