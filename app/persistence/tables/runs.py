"""Tables of events and their costs, runs, attempts, reservations and decisions."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Text, UniqueConstraint

from app.accounting.events import NeighboringRelation
from app.ledger.names import ACTOR_LENGTH, KEY_LENGTH, REQUEST_ID_LENGTH
from app.ledger.runs.reservations import ReservationStatus
from app.ledger.runs.run import EndReason, RunStatus
from app.persistence.tables.base import (
    Sha256Hex,
    StartsFrom,
    UtcDateTime,
    digest_column,
    enum_column,
    foreign_key,
    id_column,
    number_column,
    organisation_foreign_key,
    owned_table,
    partial_index,
    reference,
)

dp_events = owned_table(
    "dp_events",
    *digest_column("fingerprint", Sha256Hex()),
    Column("canonical_json", Text, nullable=False),
    organisation_foreign_key(),
    key=("fingerprint",),
)

event_costs = owned_table(
    "event_costs",
    Column("event_fingerprint", Sha256Hex, nullable=False),
    *enum_column("neighboring_relation", 32, NeighboringRelation),
    Column("grid_version", Integer, nullable=False),
    Column("curve", LargeBinary, nullable=False),
    *number_column("curve_delta", BigInteger),
    *number_column("formula_version", Integer, least=1),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    key=("event_fingerprint", "neighboring_relation", "grid_version"),
    curve_length="length(curve) > 0 AND length(curve) % 8 = 0",
)

runs = owned_table(
    "runs",
    *enum_column("status", 16, RunStatus),
    Column("event_fingerprint", Sha256Hex(optional=True)),
    *number_column("attempt", Integer, least=1),
    *number_column("next_step", BigInteger),
    *number_column("decision_count", BigInteger),
    *digest_column("chain_head"),
    id_column("reservation_id", nullable=True),
    *number_column("expected_steps", BigInteger, least=1, nullable=True),
    Column("declared_steps_per_hour", Float(53)),
    Column("starts_from", StartsFrom),
    Column("deviations", Text),
    *enum_column("end_reason", 16, EndReason, nullable=True),
    Column("ended_at", UtcDateTime),
    foreign_key("accounts", account_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    foreign_key(
        "reservations", account_id="run_id", reservation_id="id", name="fk_runs_reservation", use_alter=True
    ),  # the two tables refer to each other
    key=("account_id",),
    pending_not_started="status <> 'pending' OR (attempt = 1 AND reservation_id IS NULL)",
    declared_steps_per_hour_positive="declared_steps_per_hour > 0",
    end_reason_if_ended="(status IN ('completed', 'aborted')) = (end_reason IS NOT NULL)",
    ended_at_if_ended="(end_reason IS NULL) = (ended_at IS NULL)",
)

run_origins = owned_table(
    "run_origins",
    *reference("origin_id", "accounts"),
    Index("ix_run_origins_organisation_id_origin_id_run_id", "organisation_id", "origin_id", "run_id"),
    foreign_key("runs", run_id="account_id"),
    key=("run_id", "origin_id"),
)

attempts = owned_table(
    "attempts",
    *number_column("attempt", Integer, least=1),
    *number_column("first_step", BigInteger),
    Column("created_at", UtcDateTime, nullable=False),
    foreign_key("runs", run_id="account_id"),
    key=("run_id", "attempt"),
)

reservations = owned_table(
    "reservations",
    id_column("run_id"),
    Column("attempt", Integer, nullable=False),
    *enum_column("status", 16, ReservationStatus),
    Column("reserved_curve", LargeBinary, nullable=False),
    *number_column("reserved_delta", BigInteger),
    *number_column("lease_seconds", Integer, least=1),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    *number_column("steps_executed", BigInteger, nullable=True),
    Column("wait_until", UtcDateTime),
    Column("granted_at", UtcDateTime),
    Column("claimed_at", UtcDateTime),
    Column("priority", Integer, nullable=False, server_default="0"),
    UniqueConstraint("organisation_id", "run_id", "id"),
    foreign_key("attempts", run_id="run_id", attempt="attempt"),
    partial_index("uq_reservations_active", "run_id", where="status = 'active'", unique=True),
    partial_index("uq_reservations_waiting", "run_id", where="status = 'waiting'", unique=True),
    closed_at_unless_waiting_or_active="(status IN ('waiting', 'active')) = (closed_at IS NULL)",
    wait_until_if_not_granted=(
        "status NOT IN ('waiting', 'expired', 'cancelled') OR (wait_until IS NOT NULL AND granted_at IS NULL)"
    ),
    granted_at_if_waited="granted_at IS NULL OR wait_until IS NOT NULL",
    claimed_at_if_granted="claimed_at IS NULL OR granted_at IS NOT NULL",
    priority_in_range="priority >= -100 AND priority <= 100",
    steps_executed_if_committed="(status = 'committed') = (steps_executed IS NOT NULL)",
    curve_length="length(reserved_curve) > 0 AND length(reserved_curve) % 8 = 0",
)

reservation_items = owned_table(
    "reservation_items",
    *number_column("item", Integer),
    Column("event_fingerprint", Sha256Hex, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("revoked_count", BigInteger, nullable=False, server_default="0"),
    Column("authorized_count", BigInteger, nullable=False),
    UniqueConstraint("organisation_id", "reservation_id", "event_fingerprint"),
    foreign_key("reservations", reservation_id="id"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    key=("reservation_id", "item"),
    count_in_range="count >= 1 AND count <= 1000000000",
    authorized_count_in_range="authorized_count >= 0 AND authorized_count <= count",
    revoked_count_in_range="revoked_count >= 0 AND revoked_count <= count",
)

decisions = owned_table(
    "decisions",
    Column("position", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("idempotency_key", String(KEY_LENGTH)),
    *digest_column("request_fingerprint", Sha256Hex()),
    Column("first_step", BigInteger, nullable=False),
    Column("step_count", BigInteger, nullable=False),
    Column("requested_count", BigInteger, nullable=False),
    # the first item; `decision_events` has the others
    Column("event_fingerprint", Sha256Hex, nullable=False),
    Column("event_count", BigInteger, nullable=False),
    id_column("reservation_id", nullable=True),
    Column("epsilon", Float(53), nullable=False),
    # a unit is not checked for each decision, which would take a tenth of the time to write it
    Column("limit_unit", String(8), nullable=False),
    Column("limit_value", Float(53), nullable=False),
    Column("limit_delta", Float(53), nullable=False),
    Column("used", Float(53), nullable=False),
    *number_column("steps_remaining", BigInteger, nullable=True),
    *reference("binding_account_id", "accounts"),
    Column("refusal_details", Text),
    Column("ended_plans", Text),
    Column("warnings", Text),
    *number_column("population_version", BigInteger),
    *digest_column("entry_hash"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("request_id", String(REQUEST_ID_LENGTH)),
    foreign_key("attempts", run_id="run_id", attempt="attempt"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    foreign_key("reservations", run_id="run_id", reservation_id="id", name="fk_decisions_reservation"),
    Index(None, "organisation_id", "created_at"),
    # not written by an admitted charge without a key, as most are
    partial_index("uq_decisions_idempotency_key", "idempotency_key", where="idempotency_key IS NOT NULL", unique=True),
    partial_index("ix_decisions_not_admitted", "outcome", "created_at", where="outcome <> 'admitted'"),
    key=("run_id", "position"),
    counters_in_range="position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1",
    requested_count_at_least_step_count="requested_count >= step_count",
    event_count_in_range="event_count >= 1 AND event_count <= step_count AND event_count <= 1000000000",
    outcome_consistent=(
        "(outcome IN ('admitted', 'reported') AND refusal_details IS NULL"
        " AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
        " OR (outcome = 'refused' AND refusal_details IS NOT NULL AND steps_remaining IS NULL)"
        " OR (outcome = 'forfeited' AND refusal_details IS NULL AND steps_remaining IS NULL"
        " AND reservation_id IS NOT NULL AND idempotency_key IS NULL)"
    ),
    ended_plans_unless_refused="outcome <> 'refused' OR ended_plans IS NULL",
    warnings_unless_refused="outcome <> 'refused' OR warnings IS NULL",
    reading_in_range="epsilon >= 0 AND used >= 0 AND limit_value > 0 AND limit_delta >= 0",
)

decision_ranges = owned_table(
    "decision_ranges",
    # the decisions from here up to the next range have one actor, and times that do not decrease
    Column("first_position", BigInteger, nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    foreign_key("decisions", run_id="run_id", first_position="position"),
    Index(None, "organisation_id", "actor", "run_id", "first_position"),
    key=("run_id", "first_position"),
)

decision_events = owned_table(
    "decision_events",
    Column("position", BigInteger, nullable=False),
    *number_column("item", Integer, least=1),
    Column("event_fingerprint", Sha256Hex, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("repeats", Text, nullable=False),
    foreign_key("decisions", run_id="run_id", position="position"),
    foreign_key("dp_events", event_fingerprint="fingerprint"),
    key=("run_id", "position", "item"),
    # a thousand items, each at most a billion times
    count_in_range="count >= 1 AND count <= 1000000000000",
)
