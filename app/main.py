"""The application: wiring only."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from app.api import problems
from app.api.headers import secure
from app.api.hot import HotRoute
from app.api.openapi import describe, document
from app.api.request_ids import RequestIds
from app.api.routers import (
    accounts,
    alerts,
    checkpoints,
    experiments,
    governance,
    health,
    keys,
    lifecycle,
    planning,
    policies,
    proposals,
    runs,
    statements,
    steps,
    webhooks,
)
from app.logs import keep_secrets
from app.service.asking.keyring import KeyRing
from app.service.asking.rates import asking_rates
from app.service.placements import Placements
from app.service.proof.checkpoints import keep_checkpoints
from app.service.signing import signer_of
from app.settings import Settings

ROUTERS = (
    steps,
    accounts,
    runs,
    experiments,
    lifecycle,
    planning,
    keys,
    proposals,
    policies,
    alerts,
    webhooks,
    checkpoints,
    statements,
    governance,
    health,
)
"""In the order of the document."""


def create_app(settings: Settings) -> FastAPI:
    """Wire the service together.

    Args:
        settings: where the databases are.

    Returns:
        An ASGI application that closes its databases when it stops.

    Raises:
        InvalidInputError: a database URL is not one that this version supports.
    """
    keep_secrets()
    placements = Placements(settings.database_urls, settings.database_pool_size)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gc.collect()
        gc.freeze()  # modules live as long as the process: no collection has to walk through them again
        looking = [asyncio.create_task(app.state.keys.keep_fresh(placement.name)) for placement in placements]
        if app.state.signer is not None and settings.checkpoint_seconds:
            for placement in placements:
                signing = keep_checkpoints(placement.database, app.state.signer, settings.checkpoint_seconds)
                looking.append(asyncio.create_task(signing))
        looking.append(asyncio.create_task(app.state.keys.keep_provider_fresh()))
        async with placements.at_work(allow_private=settings.webhooks_allow_private):
            yield
            for look in looking:
                look.cancel()
            await asyncio.to_thread(app.state.keys.close)

    app = FastAPI(
        title="Epsilon Ledger",
        summary="Privacy budgets, kept the way a bank keeps accounts",
        version=version("epsilon-ledger"),
        lifespan=lifespan,
        docs_url=None,  # as `document` shows it
        redoc_url=None,
        redirect_slashes=False,
        # Nothing of it is set up here, and asking OpenTelemetry at each request takes as long as reading a step.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.placements = placements
    app.state.keys = KeyRing(placements.databases, settings.openid)
    app.state.signer = signer_of(settings.signing_key_file)
    app.state.rates = asking_rates(
        settings.rate_limit_per_second, settings.rate_limit_burst, settings.rate_limit_failures_per_second
    )
    app.state.webhooks_allow_private = settings.webhooks_allow_private
    problems.install(app)
    app.add_middleware(HotRoute, keys=app.state.keys, rates=app.state.rates, placements=placements)
    app.add_middleware(RequestIds)
    for module in ROUTERS:
        app.include_router(module.routes)
    describe(app)
    document(app)
    secure(app)
    return app


def application() -> FastAPI:
    """The application by the environment's settings; each worker process makes its own."""
    return create_app(Settings())
