"""A service with two databases."""

from dataclasses import dataclass
from datetime import UTC, datetime

import httpx2
from fastapi.testclient import TestClient

from app.service.placements import Placements
from tests.conftest import Ledger

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class PlacedService:
    """A service with two databases: the hospital lives on the default one, the clinic on eu-2."""

    http: TestClient
    placements: Placements
    hospital: Ledger
    clinic: Ledger

    def ready(self) -> httpx2.Response:
        reply: httpx2.Response = self.http.get("/readyz")
        return reply


def take_a_step(ledger: Ledger) -> str:
    ledger.population()
    ledger.budget()
    run = ledger.run()
    reply = ledger.post(f"/v1/runs/{run}/steps", {}, "trainer")
    assert (reply.status_code, reply.json()["next_step"]) == (200, 1)
    return run
