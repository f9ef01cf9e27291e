"""Accounts that share out their budget, and reservations that wait for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from tests.ledgers import SAMPLED, Ledger

OVER_TEN_DAYS: dict[str, Any] = {"type": "over_time", "over_seconds": 864_000, "parts": 10}
"""A tenth each day, the first at once."""


def allocate(ledger: Ledger, account: str, **terms: object) -> dict[str, Any]:
    """Let an account share out its budget among reservations; a second person approves that it unlocks earlier."""
    body = {"allocation": terms or None, "reason": "Several teams share it."}
    reply = ledger.put(f"/v1/accounts/{account}/allocation", body)
    if reply.status_code == 201:
        ledger.post(f"/v1/proposals/{reply.json()['id']}/approve", {}, "privacy_officer").raise_for_status()
        reply = ledger.get(f"/v1/accounts/{account}/allocation")
    return dict(reply.raise_for_status().json())


def later(hours: float = 7200) -> str:
    """Until when a reservation waits."""
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def ask(ledger: Ledger, name: str, steps: int, *, waits: bool = True, **terms: object) -> httpx2.Response:
    """Register a run with a reservation, which waits if it does not fit."""
    body = {"name": name, "budget": "mimic/icu-team", "event": SAMPLED, "reserve": [{"event": SAMPLED, "count": steps}]}
    until = {"wait_until": later()} if waits else {}
    return ledger.post("/v1/runs", body | until | terms, "trainer")


def preview(ledger: Ledger, account: str, steps: int, role: str = "viewer") -> httpx2.Response:
    """Preview such a reservation; the account is named by its id or its path."""
    if "/" in account:
        account = ledger.get(f"/v1/budgets?path={account}").json()["items"][0]["id"]
    return ledger.post(f"/v1/accounts/{account}/queue/what-if", {"events": [{"event": SAMPLED, "count": steps}]}, role)
