"""Construction of the application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI
from starlette.datastructures import State

from app.api import middleware, problems
from app.api.openapi import describe
from app.api.routers import (
    accounts,
    alerts,
    allocations,
    api_keys,
    audit,
    block_schedules,
    charts,
    checkpoints,
    experiments,
    exports,
    health,
    planning,
    policies,
    proposals,
    receivers,
    run_lifecycle,
    runs,
    statements,
    steps,
    tokens,
    verifications,
)
from app.configuration.settings import Settings
from app.dashboard import accounts as accounts_pages
from app.dashboard import administration, api_docs, assets, login, planner
from app.dashboard import audit as audit_pages
from app.dashboard import experiments as experiment_pages
from app.dashboard import runs as run_pages
from app.dashboard.page_context import install_error_pages
from app.http.step_path import StepPath
from app.logging_config import install_redaction
from app.persistence.database import Database
from app.service import readiness
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.delivery_worker import deliver
from app.service.alerts.receivers import ReceiverRules
from app.service.audit.checkpoints import run_checkpoints
from app.service.auth import credential_cache
from app.service.auth.credential_cache import Authenticator
from app.service.auth.rate_limit import RequestLimits
from app.service.background import TaskRegistry
from app.service.ledger_store import LedgerStore
from app.service.maintenance import run_maintenance, run_wal_checkpoints
from app.service.monitoring import database_collector
from app.service.monitoring.certificates import CertificateMonitor
from app.service.monitoring.database_collector import DatabaseCollector, IntegrityMonitor
from app.service.monitoring.process_sampler import Sampler
from app.service.queries.account_history import AccountHistoryCache
from app.service.queries.account_status_cache import AccountStatusCache
from app.service.runs.lost import run_lost_check
from app.service.signing.signatures import signer_of
from app.service.timekeeping import keep_time
from app.tracing_setup import configure_tracing
from app.version import VERSION

ROUTERS = (
    steps,
    accounts,
    block_schedules,
    runs,
    charts,
    experiments,
    run_lifecycle,
    planning,
    api_keys,
    tokens,
    proposals,
    policies,
    allocations,
    alerts,
    receivers,
    checkpoints,
    statements,
    verifications,
    audit,
    exports,
    health,
)
"""In the order of the OpenAPI document."""

DASHBOARD_ROUTERS = (
    *(assets, login, accounts_pages, run_pages, administration, experiment_pages, planner, audit_pages, api_docs),
)
"""Pages for browsers."""


def create_app(
    settings: Settings,
    *,
    background_work: bool = True,
    caller_seconds: float = credential_cache.CACHE_SECONDS,
    readiness_seconds: float = readiness.CACHE_SECONDS,
    metrics_seconds: float = database_collector.CACHE_SECONDS,
) -> FastAPI:
    """Build the ASGI application; it closes its database on shutdown.

    Args:
        settings: of the service.
        background_work: whether background tasks use the database; otherwise the caller samples its clock.
        caller_seconds: lifetime of a cached caller.
        readiness_seconds: lifetime of a result of `/readyz`.
        metrics_seconds: lifetime of the metrics that are read from the database.

    Raises:
        InvalidInputError: the database URL is not supported.
    """
    install_redaction()
    sender = AlertSender(
        allow_private=settings.webhooks_allow_private, smtp=settings.smtp_server, public_url=settings.public_url
    )
    database = Database(
        settings.database_url,
        settings.database_pool_size,
        password_file=settings.database_password_file,
        pooled=settings.pooled,
    )
    store = LedgerStore(database, readiness_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        background: TaskRegistry = app.state.background
        _start_tasks(background, app.state)
        if background_work:
            _start_background_work(background, app.state, settings, sender)
        try:
            yield
        finally:
            await background.stop()
            await asyncio.to_thread(app.state.keys.close)
            await store.close()

    app = FastAPI(
        title="Epsilon Ledger",
        summary="Privacy budgets, kept the way a bank keeps accounts",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,  # the dashboard has its own page
        redoc_url=None,
        redirect_slashes=False,
        telemetry=configure_tracing(),
    )
    app.state.background = TaskRegistry()
    app.state.store = store
    app.state.keys = Authenticator(database, settings.openid, settings.workload_issuers, caller_seconds)
    app.state.signer = signer_of(settings.signing_key_file)
    app.state.ledger_stats = DatabaseCollector(store, signs=app.state.signer is not None, cache_seconds=metrics_seconds)
    _set_monitors(app.state)
    _set_terms(app.state, settings)
    problems.install(app)
    install_error_pages(app)
    for module in (*ROUTERS, *DASHBOARD_ROUTERS):
        # `include_router` would copy each route for this application.
        app.router.routes.extend(module.routes.routes)
    describe(app)
    middleware.install(app)
    return app


def _set_monitors(state: State) -> None:
    """Create what watches the service, and what pages keep of the ledger."""
    store: LedgerStore = state.store
    state.sampler = Sampler(store)
    state.integrity = IntegrityMonitor(store.database)
    state.certificates = CertificateMonitor(store.database)
    state.account_statuses = AccountStatusCache()
    state.account_histories = AccountHistoryCache()


def _set_terms(state: State, settings: Settings) -> None:
    """Keep the settings that requests need."""
    state.rates = RequestLimits(
        settings.rate_limit_per_second,
        settings.rate_limit_burst,
        settings.rate_limit_anonymous_per_second,
        settings.rate_limit_sign_ins_per_minute,
        settings.rate_limit_exchanges_per_minute,
    )
    state.metrics_token = settings.resolved_metrics_token
    state.metrics_top_accounts = settings.metrics_top_accounts
    state.receiver_rules = ReceiverRules(settings.webhooks_allow_private, settings.smtp_server is not None)
    state.session_hours = settings.session_hours
    state.oidc_session_minutes = settings.oidc_session_minutes
    state.public_url = settings.public_url
    state.oidc_client = settings.oidc_client()


def _start_tasks(background: TaskRegistry, state: State) -> None:
    """Start the tasks that leave the database alone."""
    for name, key_set in state.keys.key_sets().items():
        background.start(name, key_set.run_renewal())
    background.start("samples", state.sampler.run())


def _start_background_work(background: TaskRegistry, state: State, settings: Settings, sender: AlertSender) -> None:
    """Start the tasks that read or change the database."""
    database: Database = state.store.database
    background.start("clock", keep_time(database.clock))
    background.start("maintenance", run_maintenance(database))
    background.start("deliveries", deliver(database, sender))
    background.start("keys", state.keys.run_refresh())
    background.start("integrity", state.integrity.run())
    if database.dialect == "sqlite":
        background.start("wal", run_wal_checkpoints(database))
    else:
        background.start("certificates", state.certificates.run())
    if settings.run_lost_after_days:
        background.start("lost-runs", run_lost_check(database, timedelta(days=settings.run_lost_after_days)))
    if state.signer is not None and settings.checkpoint_seconds:
        background.start("checkpoints", run_checkpoints(database, state.signer, settings.checkpoint_seconds))


def application() -> StepPath:
    """Build what the server serves from the environment's settings, once for each worker process."""
    return StepPath(create_app(Settings()))
