"""Tables of events and their costs, runs, attempts, reservations and decisions."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Text, UniqueConstraint

from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, REQUEST_ID_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
)

dp_events = owned_table(
    "dp_events",
    ("fingerprint",),
    Column("fingerprint", String(64), nullable=False),
    Column("canonical_json", Text, nullable=False),
    organisation_foreign_key(),
    fingerprint_is_sha256="length(fingerprint) = 64",
)

event_costs = owned_table(
    "event_costs",
    ("event_fingerprint", "neighboring_relation", "grid_version"),
    Column("event_fingerprint", String(64), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("grid_version", Integer, nullable=False),
    Column("curve", LargeBinary, nullable=False),
    Column("curve_delta", BigInteger, nullable=False),
    Column("formula_version", Integer, nullable=False),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    neighboring_relation_known="neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
    curve_length="length(curve) > 0 AND length(curve) % 8 = 0",
    curve_delta_nonnegative="curve_delta >= 0",
    formula_version_positive="formula_version >= 1",
)

runs = owned_table(
    "runs",
    ("account_id",),
    id_column("account_id"),
    Column("status", String(16), nullable=False),
    Column("event_fingerprint", String(64)),
    Column("attempt", Integer, nullable=False),
    Column("next_step", BigInteger, nullable=False),
    Column("decision_count", BigInteger, nullable=False),
    Column("chain_head", LargeBinary(32), nullable=False),
    id_column("reservation_id", nullable=True),
    Column("declared_steps", BigInteger),
    Column("declared_steps_per_hour", Float(53)),
    Column("deviations", Text),
    foreign_key("accounts", account_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    foreign_key(
        "reservations", account_id="run_id", reservation_id="id", name="fk_runs_reservation", use_alter=True
    ),  # the two tables refer to each other
    status_known="status IN ('pending', 'active', 'paused', 'completed', 'aborted', 'overdrawn')",
    pending_not_started="status <> 'pending' OR (attempt = 1 AND reservation_id IS NULL)",
    declared_steps_positive="declared_steps >= 1",
    declared_steps_per_hour_positive="declared_steps_per_hour > 0",
    chain_head_is_sha256="length(chain_head) = 32",
    attempt_positive="attempt >= 1",
    next_step_nonnegative="next_step >= 0",
    decision_count_nonnegative="decision_count >= 0",
)

attempts = owned_table(
    "attempts",
    ("run_id", "attempt"),
    id_column("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("organisation_id", "run_id", "attempt", "first_step"),
    foreign_key("runs", run_id="account_id"),
    attempt_positive="attempt >= 1",
    first_step_nonnegative="first_step >= 0",
)

reservations = owned_table(
    "reservations",
    ("id",),
    id_column("id"),
    id_column("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reserved_curve", LargeBinary, nullable=False),
    Column("reserved_delta", BigInteger, nullable=False),
    Column("lease_seconds", Integer, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Column("steps_executed", BigInteger),
    UniqueConstraint("organisation_id", "run_id", "id"),
    foreign_key("attempts", run_id="run_id", attempt="attempt"),
    partial_index("uq_reservations_active", "organisation_id", "run_id", where="status = 'active'", unique=True),
    status_known="status IN ('active', 'committed', 'voided', 'forfeited')",
    closed_at_unless_active="(status = 'active') = (closed_at IS NULL)",
    steps_executed_if_committed="(status = 'committed') = (steps_executed IS NOT NULL)",
    steps_executed_nonnegative="steps_executed >= 0",
    curve_length="length(reserved_curve) > 0 AND length(reserved_curve) % 8 = 0",
    reserved_delta_nonnegative="reserved_delta >= 0",
    lease_seconds_positive="lease_seconds >= 1",
)

reservation_items = owned_table(
    "reservation_items",
    ("reservation_id", "item"),
    id_column("reservation_id"),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("revoked_count", BigInteger, nullable=False, server_default="0"),
    Column("authorized_count", BigInteger, nullable=False),
    UniqueConstraint("organisation_id", "reservation_id", "event_fingerprint"),
    foreign_key("reservations", reservation_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    item_nonnegative="item >= 0",
    count_in_range="count >= 1 AND count <= 1000000000",
    authorized_count_in_range="authorized_count >= 0 AND authorized_count <= count",
    revoked_count_in_range="revoked_count >= 0 AND revoked_count <= count",
)

decisions = owned_table(
    "decisions",
    ("run_id", "position"),
    id_column("run_id"),
    Column("position", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("idempotency_key", String(KEY_LENGTH)),
    Column("request_fingerprint", String(64), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("step_count", BigInteger, nullable=False),
    Column("requested_count", BigInteger, nullable=False),
    Column("next_step", BigInteger),
    Column("follows_step", BigInteger),
    Column("opens_step", BigInteger),
    id_column("reservation_id", nullable=True),
    Column("epsilon", Float(53), nullable=False),
    Column("delta", Float(53), nullable=False),
    Column("epsilon_limit", Float(53), nullable=False),
    Column("steps_remaining", BigInteger),
    id_column("binding_account_id"),
    Column("refusal_details", Text),
    Column("entry_hash", LargeBinary(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("request_id", String(REQUEST_ID_LENGTH)),
    UniqueConstraint("organisation_id", "idempotency_key"),
    UniqueConstraint("organisation_id", "run_id", "attempt", "next_step"),
    foreign_key("runs", run_id="account_id"),
    foreign_key("accounts", binding_account_id="id"),
    foreign_key("decisions", run_id="run_id", attempt="attempt", follows_step="next_step", name="fk_decisions_follows"),
    foreign_key("attempts", run_id="run_id", attempt="attempt", opens_step="first_step", name="fk_decisions_opens"),
    foreign_key("reservations", run_id="run_id", reservation_id="id", name="fk_decisions_reservation"),
    Index(None, "organisation_id", "created_at"),
    # rare rows, not written by an admitted charge
    partial_index(
        "ix_decisions_not_admitted", "organisation_id", "outcome", "created_at", where="outcome <> 'admitted'"
    ),
    partial_index(
        "uq_decisions_first_step",
        "organisation_id",
        "run_id",
        "attempt",
        "first_step",
        where="outcome IN ('admitted', 'reported')",
        unique=True,
    ),
    counters_in_range="position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1",
    requested_count_at_least_step_count="requested_count >= step_count",
    steps_remaining_nonnegative="steps_remaining >= 0",
    outcome_consistent=(
        "(outcome IN ('admitted', 'reported') AND next_step IS NOT NULL AND next_step = first_step + step_count"
        " AND (follows_step IS NULL) <> (opens_step IS NULL) AND COALESCE(follows_step, opens_step) = first_step"
        " AND refusal_details IS NULL AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
        " OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal_details IS NOT NULL AND steps_remaining IS NULL)"
        " OR (outcome = 'forfeited' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal_details IS NULL AND steps_remaining IS NULL"
        " AND reservation_id IS NOT NULL AND idempotency_key IS NULL)"
    ),
    entry_hash_is_sha256="length(entry_hash) = 32",
    reading_in_range="epsilon >= 0 AND delta > 0 AND epsilon_limit > 0",
    request_fingerprint_is_sha256="length(request_fingerprint) = 64",
)

decision_events = owned_table(
    "decision_events",
    ("run_id", "position", "item"),
    id_column("run_id"),
    Column("position", BigInteger, nullable=False),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    foreign_key("decisions", run_id="run_id", position="position"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    item_nonnegative="item >= 0",
    count_in_range="count >= 1 AND count <= 1000000000",
)
