"""Tables of events and their costs, runs, attempts, reservations and decisions."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, REQUEST_ID_LENGTH
from app.persistence.tables.base import (
    UtcDateTime,
    foreign_key,
    id_column,
    metadata,
    organisation_foreign_key,
    partial_index,
)

dp_events = Table(
    "dp_events",
    metadata,
    id_column("organisation_id"),
    Column("fingerprint", String(64), nullable=False),
    Column("canonical_json", Text, nullable=False),
    PrimaryKeyConstraint("organisation_id", "fingerprint"),
    organisation_foreign_key(),
    CheckConstraint("length(fingerprint) = 64", name="fingerprint_is_sha256"),
)

event_costs = Table(
    "event_costs",
    metadata,
    id_column("organisation_id"),
    Column("event_fingerprint", String(64), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("grid_version", Integer, nullable=False),
    Column("curve", LargeBinary, nullable=False),
    Column("curve_delta", BigInteger, nullable=False),
    Column("formula_version", Integer, nullable=False),
    PrimaryKeyConstraint("organisation_id", "event_fingerprint", "neighboring_relation", "grid_version"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    CheckConstraint(
        "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
        name="neighboring_relation_known",
    ),
    CheckConstraint("length(curve) > 0 AND length(curve) % 8 = 0", name="curve_length"),
    CheckConstraint("curve_delta >= 0", name="curve_delta_nonnegative"),
    CheckConstraint("formula_version >= 1", name="formula_version_positive"),
)

runs = Table(
    "runs",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "account_id"),
    foreign_key("accounts", account_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    foreign_key(
        "reservations", account_id="run_id", reservation_id="id", name="fk_runs_reservation", use_alter=True
    ),  # the two tables refer to each other
    CheckConstraint(
        "status IN ('pending', 'active', 'paused', 'completed', 'aborted', 'overdrawn')", name="status_known"
    ),
    CheckConstraint("status <> 'pending' OR (attempt = 1 AND reservation_id IS NULL)", name="pending_not_started"),
    CheckConstraint("declared_steps >= 1", name="declared_steps_positive"),
    CheckConstraint("declared_steps_per_hour > 0", name="declared_steps_per_hour_positive"),
    CheckConstraint("length(chain_head) = 32", name="chain_head_is_sha256"),
    CheckConstraint("attempt >= 1", name="attempt_positive"),
    CheckConstraint("next_step >= 0", name="next_step_nonnegative"),
    CheckConstraint("decision_count >= 0", name="decision_count_nonnegative"),
)

attempts = Table(
    "attempts",
    metadata,
    id_column("organisation_id"),
    id_column("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id", "attempt"),
    UniqueConstraint("organisation_id", "run_id", "attempt", "first_step"),
    foreign_key("runs", run_id="account_id"),
    CheckConstraint("attempt >= 1", name="attempt_positive"),
    CheckConstraint("first_step >= 0", name="first_step_nonnegative"),
)

reservations = Table(
    "reservations",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "run_id", "id"),
    foreign_key("attempts", run_id="run_id", attempt="attempt"),
    CheckConstraint("status IN ('active', 'committed', 'voided', 'forfeited')", name="status_known"),
    CheckConstraint("(status = 'active') = (closed_at IS NULL)", name="closed_at_unless_active"),
    CheckConstraint("(status = 'committed') = (steps_executed IS NOT NULL)", name="steps_executed_if_committed"),
    CheckConstraint("steps_executed >= 0", name="steps_executed_nonnegative"),
    CheckConstraint("length(reserved_curve) > 0 AND length(reserved_curve) % 8 = 0", name="curve_length"),
    CheckConstraint("reserved_delta >= 0", name="reserved_delta_nonnegative"),
    CheckConstraint("lease_seconds >= 1", name="lease_seconds_positive"),
    partial_index("uq_reservations_active", "organisation_id", "run_id", where="status = 'active'", unique=True),
)

reservation_items = Table(
    "reservation_items",
    metadata,
    id_column("organisation_id"),
    id_column("reservation_id"),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("withdrawn_count", BigInteger, nullable=False, server_default="0"),
    Column("authorized_count", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "reservation_id", "item"),
    UniqueConstraint("organisation_id", "reservation_id", "event_fingerprint"),
    foreign_key("reservations", reservation_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    CheckConstraint("item >= 0", name="item_nonnegative"),
    CheckConstraint("count >= 1 AND count <= 1000000000", name="count_in_range"),
    CheckConstraint("authorized_count >= 0 AND authorized_count <= count", name="authorized_count_in_range"),
    CheckConstraint("withdrawn_count >= 0 AND withdrawn_count <= count", name="withdrawn_count_in_range"),
)

decisions = Table(
    "decisions",
    metadata,
    id_column("organisation_id"),
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
    PrimaryKeyConstraint("organisation_id", "run_id", "position"),
    UniqueConstraint("organisation_id", "idempotency_key"),
    UniqueConstraint("organisation_id", "run_id", "attempt", "next_step"),
    foreign_key("runs", run_id="account_id"),
    foreign_key("accounts", binding_account_id="id"),
    foreign_key("decisions", run_id="run_id", attempt="attempt", follows_step="next_step", name="fk_decisions_follows"),
    foreign_key("attempts", run_id="run_id", attempt="attempt", opens_step="first_step", name="fk_decisions_opens"),
    foreign_key("reservations", run_id="run_id", reservation_id="id", name="fk_decisions_reservation"),
    CheckConstraint("position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1", name="counters_in_range"),
    CheckConstraint("requested_count >= step_count", name="requested_count_at_least_step_count"),
    CheckConstraint("steps_remaining >= 0", name="steps_remaining_nonnegative"),
    CheckConstraint(
        "(outcome IN ('admitted', 'reported') AND next_step IS NOT NULL AND next_step = first_step + step_count"
        " AND (follows_step IS NULL) <> (opens_step IS NULL) AND COALESCE(follows_step, opens_step) = first_step"
        " AND refusal_details IS NULL AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
        " OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal_details IS NOT NULL AND steps_remaining IS NULL)"
        " OR (outcome = 'forfeited' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal_details IS NULL AND steps_remaining IS NULL"
        " AND reservation_id IS NOT NULL AND idempotency_key IS NULL)",
        name="outcome_consistent",
    ),
    CheckConstraint("length(entry_hash) = 32", name="entry_hash_is_sha256"),
    CheckConstraint("epsilon >= 0 AND delta > 0 AND epsilon_limit > 0", name="reading_in_range"),
    CheckConstraint("length(request_fingerprint) = 64", name="request_fingerprint_is_sha256"),
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
)

decision_events = Table(
    "decision_events",
    metadata,
    id_column("organisation_id"),
    id_column("run_id"),
    Column("position", BigInteger, nullable=False),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id", "position", "item"),
    foreign_key("decisions", run_id="run_id", position="position"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    CheckConstraint("item >= 0", name="item_nonnegative"),
    CheckConstraint("count >= 1 AND count <= 1000000000", name="count_in_range"),
)
