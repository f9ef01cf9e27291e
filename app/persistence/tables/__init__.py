"""The tables; their constraints restate the invariants.

The organisation's id leads every key, so that organisations can be placed on several databases.
"""

from app.persistence.tables.accounts import (
    account_paths,
    accounts,
    api_keys,
    attestations,
    balances,
    blocks,
    experiments,
    organisations,
    populations,
    replies,
    run_budgets,
)
from app.persistence.tables.alerts import MAX_URL_LENGTH, account_readings, alerts, deliveries, webhooks
from app.persistence.tables.base import ACTOR_LENGTH, KEY_LENGTH, REQUEST_ID_LENGTH, metadata
from app.persistence.tables.governance import audit_entries, checkpoints, proposals, run_anchors, sessions
from app.persistence.tables.runs import (
    attempts,
    decisions,
    dp_events,
    event_curves,
    reservation_items,
    reservations,
    runs,
    step_events,
)

__all__ = [
    "ACTOR_LENGTH",
    "KEY_LENGTH",
    "MAX_URL_LENGTH",
    "REQUEST_ID_LENGTH",
    "account_paths",
    "account_readings",
    "accounts",
    "alerts",
    "api_keys",
    "attempts",
    "attestations",
    "audit_entries",
    "balances",
    "blocks",
    "checkpoints",
    "decisions",
    "deliveries",
    "dp_events",
    "event_curves",
    "experiments",
    "metadata",
    "organisations",
    "populations",
    "proposals",
    "replies",
    "reservation_items",
    "reservations",
    "run_anchors",
    "run_budgets",
    "runs",
    "sessions",
    "step_events",
    "webhooks",
]
