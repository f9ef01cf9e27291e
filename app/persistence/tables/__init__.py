"""The tables; their constraints restate the invariants.

The organisation's id leads every key, so that organisations can be placed on several databases.
"""

from app.persistence.tables.accounts import (
    account_ancestors,
    accounts,
    api_keys,
    balances,
    data_blocks,
    experiments,
    idempotent_responses,
    organisations,
    partition_attestations,
    populations,
    run_budgets,
)
from app.persistence.tables.base import metadata
from app.persistence.tables.governance import (
    account_usage_snapshots,
    alerts,
    audit_entries,
    checkpoints,
    deliveries,
    proposals,
    receivers,
    run_anchors,
    sessions,
    verifications,
)
from app.persistence.tables.runs import (
    attempts,
    decision_events,
    decision_ranges,
    decisions,
    dp_events,
    event_costs,
    reservation_items,
    reservations,
    runs,
)

__all__ = [
    "account_ancestors",
    "account_usage_snapshots",
    "accounts",
    "alerts",
    "api_keys",
    "attempts",
    "audit_entries",
    "balances",
    "checkpoints",
    "data_blocks",
    "decision_events",
    "decision_ranges",
    "decisions",
    "deliveries",
    "dp_events",
    "event_costs",
    "experiments",
    "idempotent_responses",
    "metadata",
    "organisations",
    "partition_attestations",
    "populations",
    "proposals",
    "receivers",
    "reservation_items",
    "reservations",
    "run_anchors",
    "run_budgets",
    "runs",
    "sessions",
    "verifications",
]
