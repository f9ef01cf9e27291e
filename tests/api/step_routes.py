"""A furnished ledger that serves the steps' endpoint in two ways: as it is, and behind a plain route of FastAPI."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.api.route import router
from app.api.routers import steps
from tests.api.conftest import SeededLedger, furnish
from tests.conftest import open_ledger

BOTH = ("/v1/runs/{run}/steps", "/v1/plain/{run}/steps")


@contextmanager
def serving_both(folder: Path, database_url: str) -> Iterator[SeededLedger]:
    """Whoever asks with a key that was seen once is known for as long as the seeded ledger stands."""
    with pytest.MonkeyPatch.context() as patch, open_ledger(folder, database_url) as ledger:
        for seconds in ("CACHE_SECONDS", "IDLE_SECONDS"):
            patch.setattr(f"app.service.auth.credential_cache.{seconds}", 3600.0)
        app = ledger.http.app
        assert isinstance(app, FastAPI)
        plain = router()
        plain.post("/plain/{run_id}/steps", operation_id="plainSteps")(steps.authorize_steps)
        app.include_router(plain)
        yield furnish(ledger)


@contextmanager
def watched() -> Iterator[list[str]]:
    """The runs for which steps are asked the short way meanwhile, past the framework."""
    asked: list[str] = []
    endpoint = steps.authorize_steps

    async def authorize_steps(run_id: str, *rest: object) -> object:
        asked.append(run_id)
        return await endpoint(run_id, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "authorize_steps", authorize_steps)
        # Who was known stays so, however slow this is.
        patch.setattr("app.service.auth.credential_cache.CACHE_SECONDS", 3600.0)
        yield asked
