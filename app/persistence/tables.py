"""The tables; their constraints restate the invariants.

The organisation's id leads every key, so that organisations can be placed on several databases.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect

from app.ledger.names import MAX_NAME_LENGTH

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID_LENGTH = 40
KEY_LENGTH = 255


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, aware in Python, on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive moment; store UTC."""
        del dialect
        if value is None:
            return None
        assert value.tzinfo is not None, "moments in the ledger are aware"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware moment."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _id(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, String(ID_LENGTH), nullable=nullable)


organisations = Table(
    "organisations",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    CheckConstraint("name <> ''", name="name_given"),
)

api_keys = Table(
    "api_keys",
    metadata,
    _id("organisation_id"),
    _id("id"),
    Column("role", String(16), nullable=False),
    Column("secret_hash", LargeBinary(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("id"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("role IN ('admin', 'trainer', 'viewer')", name="role_known"),
    CheckConstraint("length(secret_hash) = 32", name="secret_hash_is_sha256"),
)

accounts = Table(
    "accounts",
    metadata,
    _id("organisation_id"),
    _id("id"),
    Column("kind", String(16), nullable=False),
    _id("parent_id", nullable=True),
    _id("population_id"),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("path", Text, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("epsilon_limit", Float(53)),
    Column("delta_limit", Float(53)),
    Column("filter", String(16), nullable=False),
    Column("planned", Text, nullable=False),
    Column("weights", Text),
    Column("grid_version", Integer, nullable=False),
    Column("spent", LargeBinary, nullable=False),
    Column("held", LargeBinary, nullable=False),
    Column("spent_delta", BigInteger, nullable=False, server_default="0"),
    Column("held_delta", BigInteger, nullable=False, server_default="0"),
    Column("version", BigInteger, nullable=False),
    Column("quarantine", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "id"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    ForeignKeyConstraint(["organisation_id", "parent_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(["organisation_id", "population_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("kind IN ('population', 'budget', 'run')", name="kind_known"),
    CheckConstraint("name <> ''", name="name_given"),
    CheckConstraint(
        "(kind = 'population') = (parent_id IS NULL) AND (kind = 'population') = (depth = 0) AND depth >= 0",
        name="population_is_root",
    ),
    CheckConstraint("kind <> 'population' OR population_id = id", name="population_is_its_own"),
    CheckConstraint("kind = 'run' OR epsilon_limit IS NOT NULL", name="limit_unless_run"),
    CheckConstraint("(epsilon_limit IS NULL) = (delta_limit IS NULL)", name="limit_whole"),
    CheckConstraint(
        "epsilon_limit > 0 AND epsilon_limit <= 10000 AND delta_limit > 0 AND delta_limit < 0.5",
        name="limit_in_range",
    ),
    CheckConstraint("filter IN ('adaptive', 'declared')", name="filter_known"),
    CheckConstraint("filter = 'adaptive' OR weights IS NULL", name="weights_only_if_adaptive"),
    CheckConstraint(
        "length(spent) > 0 AND length(spent) % 8 = 0 AND length(held) IN (0, length(spent))", name="curves_whole"
    ),
    CheckConstraint("version >= 0", name="version_counts"),
    CheckConstraint("spent_delta >= 0", name="spent_delta_counts"),
    CheckConstraint("held_delta >= 0", name="held_delta_counts"),
    CheckConstraint("quarantine <> ''", name="quarantine_said"),
    Index(
        "uq_accounts_path",
        "organisation_id",
        "path",
        unique=True,
        sqlite_where=Column("kind") != "run",
        postgresql_where=Column("kind") != "run",
    ),
    Index(None, "organisation_id", "parent_id"),
)

account_paths = Table(
    "account_paths",
    metadata,
    _id("organisation_id"),
    _id("account_id"),
    _id("ancestor_id"),
    Column("depth", Integer, nullable=False),
    PrimaryKeyConstraint("organisation_id", "account_id", "depth"),
    UniqueConstraint("organisation_id", "ancestor_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(["organisation_id", "ancestor_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("depth >= 0", name="depth_counts"),
)

populations = Table(
    "populations",
    metadata,
    _id("organisation_id"),
    _id("account_id"),
    Column("privacy_unit", String(MAX_NAME_LENGTH), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("size", BigInteger),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    CheckConstraint("privacy_unit <> ''", name="privacy_unit_given"),
    CheckConstraint(
        "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')",
        name="relation_known",
    ),
    CheckConstraint("size > 0", name="size_counts"),
)

dp_events = Table(
    "dp_events",
    metadata,
    _id("organisation_id"),
    Column("fingerprint", String(64), nullable=False),
    Column("canonical", Text, nullable=False),
    PrimaryKeyConstraint("organisation_id", "fingerprint"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("length(fingerprint) = 64", name="fingerprint_is_sha256"),
)

event_curves = Table(
    "event_curves",
    metadata,
    _id("organisation_id"),
    Column("event_fingerprint", String(64), nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("grid_version", Integer, nullable=False),
    Column("curve", LargeBinary, nullable=False),
    Column("curve_delta", BigInteger, nullable=False, server_default="0"),
    Column("formula_version", Integer, nullable=False, server_default="1"),
    PrimaryKeyConstraint("organisation_id", "event_fingerprint", "neighboring_relation", "grid_version"),
    ForeignKeyConstraint(
        ["organisation_id", "event_fingerprint"], ["dp_events.organisation_id", "dp_events.fingerprint"]
    ),
    CheckConstraint(
        "neighboring_relation IN ('add_or_remove_one', 'replace_one', 'replace_special')", name="relation_known"
    ),
    CheckConstraint("length(curve) > 0 AND length(curve) % 8 = 0", name="curve_whole"),
    CheckConstraint("curve_delta >= 0", name="curve_delta_counts"),
    CheckConstraint("formula_version >= 1", name="formula_version_counts"),
)

runs = Table(
    "runs",
    metadata,
    _id("organisation_id"),
    _id("account_id"),
    Column("status", String(16), nullable=False),
    Column("event_fingerprint", String(64)),
    Column("attempt", Integer, nullable=False),
    Column("next_step", BigInteger, nullable=False),
    Column("decisions", BigInteger, nullable=False),
    Column("chain_head", LargeBinary(32), nullable=False),
    _id("reservation_id", nullable=True),
    PrimaryKeyConstraint("organisation_id", "account_id"),
    ForeignKeyConstraint(["organisation_id", "account_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(
        ["organisation_id", "event_fingerprint"], ["dp_events.organisation_id", "dp_events.fingerprint"]
    ),
    ForeignKeyConstraint(
        ["organisation_id", "account_id", "reservation_id"],
        ["reservations.organisation_id", "reservations.run_id", "reservations.id"],
        name="fk_runs_reservation",
        use_alter=True,  # the two tables refer to each other
    ),
    CheckConstraint("status IN ('active', 'paused', 'completed', 'aborted', 'overdrawn')", name="status_known"),
    CheckConstraint("length(chain_head) = 32", name="chain_head_is_sha256"),
    CheckConstraint("attempt >= 1", name="attempt_counts"),
    CheckConstraint("next_step >= 0", name="next_step_counts"),
    CheckConstraint("decisions >= 0", name="decisions_count"),
)

attempts = Table(
    "attempts",
    metadata,
    _id("organisation_id"),
    _id("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id", "attempt"),
    UniqueConstraint("organisation_id", "run_id", "attempt", "first_step"),
    ForeignKeyConstraint(["organisation_id", "run_id"], ["runs.organisation_id", "runs.account_id"]),
    CheckConstraint("attempt >= 1", name="attempt_counts"),
    CheckConstraint("first_step >= 0", name="first_step_counts"),
)

reservations = Table(
    "reservations",
    metadata,
    _id("organisation_id"),
    _id("id"),
    _id("run_id"),
    Column("attempt", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("reserved", LargeBinary, nullable=False),
    Column("reserved_delta", BigInteger, nullable=False),
    Column("lease_seconds", Integer, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Column("steps_executed", BigInteger),
    PrimaryKeyConstraint("organisation_id", "id"),
    UniqueConstraint("organisation_id", "run_id", "id"),
    ForeignKeyConstraint(
        ["organisation_id", "run_id", "attempt"],
        ["attempts.organisation_id", "attempts.run_id", "attempts.attempt"],
    ),
    CheckConstraint("status IN ('active', 'committed', 'voided', 'forfeited')", name="status_known"),
    CheckConstraint("(status = 'active') = (closed_at IS NULL)", name="closed_once"),
    CheckConstraint("(status = 'committed') = (steps_executed IS NOT NULL)", name="attested_if_committed"),
    CheckConstraint("steps_executed >= 0", name="steps_executed_count"),
    CheckConstraint("length(reserved) > 0 AND length(reserved) % 8 = 0", name="curve_whole"),
    CheckConstraint("reserved_delta >= 0", name="reserved_delta_counts"),
    CheckConstraint("lease_seconds >= 1", name="lease_counts"),
    Index(
        "uq_reservations_active",
        "organisation_id",
        "run_id",
        unique=True,
        sqlite_where=Column("status") == "active",
        postgresql_where=Column("status") == "active",
    ),
)

reservation_items = Table(
    "reservation_items",
    metadata,
    _id("organisation_id"),
    _id("reservation_id"),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "reservation_id", "item"),
    UniqueConstraint("organisation_id", "reservation_id", "event_fingerprint"),
    ForeignKeyConstraint(["organisation_id", "reservation_id"], ["reservations.organisation_id", "reservations.id"]),
    ForeignKeyConstraint(
        ["organisation_id", "event_fingerprint"], ["dp_events.organisation_id", "dp_events.fingerprint"]
    ),
    CheckConstraint("item >= 0", name="item_counts"),
    CheckConstraint("count >= 1 AND count <= 1000000000", name="count_in_range"),
    CheckConstraint("used >= 0 AND used <= count", name="used_in_range"),
)

decisions = Table(
    "decisions",
    metadata,
    _id("organisation_id"),
    _id("run_id"),
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
    _id("reservation_id", nullable=True),
    Column("epsilon", Float(53), nullable=False),
    Column("delta", Float(53), nullable=False),
    Column("epsilon_limit", Float(53), nullable=False),
    Column("steps_remaining", BigInteger),
    _id("binding_account_id"),
    Column("refusal", Text),
    Column("entry_hash", LargeBinary(32), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id", "position"),
    UniqueConstraint("organisation_id", "idempotency_key"),
    UniqueConstraint("organisation_id", "run_id", "attempt", "next_step"),
    ForeignKeyConstraint(["organisation_id", "run_id"], ["runs.organisation_id", "runs.account_id"]),
    ForeignKeyConstraint(["organisation_id", "binding_account_id"], ["accounts.organisation_id", "accounts.id"]),
    ForeignKeyConstraint(
        ["organisation_id", "run_id", "attempt", "follows_step"],
        ["decisions.organisation_id", "decisions.run_id", "decisions.attempt", "decisions.next_step"],
        name="fk_decisions_follows",
    ),
    ForeignKeyConstraint(
        ["organisation_id", "run_id", "attempt", "opens_step"],
        ["attempts.organisation_id", "attempts.run_id", "attempts.attempt", "attempts.first_step"],
        name="fk_decisions_opens",
    ),
    ForeignKeyConstraint(
        ["organisation_id", "run_id", "reservation_id"],
        ["reservations.organisation_id", "reservations.run_id", "reservations.id"],
        name="fk_decisions_reservation",
    ),
    CheckConstraint("position >= 0 AND attempt >= 1 AND first_step >= 0 AND step_count >= 1", name="counts"),
    CheckConstraint("requested_count >= step_count", name="requested_count_covers"),
    CheckConstraint("steps_remaining >= 0", name="steps_remaining_count"),
    CheckConstraint(
        "(outcome IN ('admitted', 'reported') AND next_step IS NOT NULL AND next_step = first_step + step_count"
        " AND (follows_step IS NULL) <> (opens_step IS NULL) AND COALESCE(follows_step, opens_step) = first_step"
        " AND refusal IS NULL AND (outcome = 'reported' OR steps_remaining IS NOT NULL))"
        " OR (outcome = 'refused' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal IS NOT NULL AND steps_remaining IS NULL)"
        " OR (outcome = 'forfeited' AND next_step IS NULL AND follows_step IS NULL AND opens_step IS NULL"
        " AND refusal IS NULL AND steps_remaining IS NULL AND reservation_id IS NOT NULL AND idempotency_key IS NULL)",
        name="outcome_whole",
    ),
    CheckConstraint("length(entry_hash) = 32", name="entry_hash_is_sha256"),
    CheckConstraint("epsilon >= 0 AND delta > 0 AND epsilon_limit > 0", name="reading_in_range"),
    CheckConstraint("length(request_fingerprint) = 64", name="request_fingerprint_is_sha256"),
    Index(
        "uq_decisions_first_step",
        "organisation_id",
        "run_id",
        "attempt",
        "first_step",
        unique=True,
        sqlite_where=text("outcome IN ('admitted', 'reported')"),
        postgresql_where=text("outcome IN ('admitted', 'reported')"),
    ),
)

step_events = Table(
    "step_events",
    metadata,
    _id("organisation_id"),
    _id("run_id"),
    Column("position", BigInteger, nullable=False),
    Column("item", Integer, nullable=False),
    Column("event_fingerprint", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    PrimaryKeyConstraint("organisation_id", "run_id", "position", "item"),
    ForeignKeyConstraint(
        ["organisation_id", "run_id", "position"],
        ["decisions.organisation_id", "decisions.run_id", "decisions.position"],
    ),
    ForeignKeyConstraint(
        ["organisation_id", "event_fingerprint"], ["dp_events.organisation_id", "dp_events.fingerprint"]
    ),
    CheckConstraint("item >= 0", name="item_counts"),
    CheckConstraint("count >= 1 AND count <= 1000000000", name="count_in_range"),
)

replies = Table(
    "replies",
    metadata,
    _id("organisation_id"),
    Column("idempotency_key", String(KEY_LENGTH), nullable=False),
    Column("request_fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False, server_default="201"),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("organisation_id", "idempotency_key"),
    ForeignKeyConstraint(["organisation_id"], ["organisations.id"]),
    CheckConstraint("status IN (201, 403)", name="status_known"),
    CheckConstraint("length(request_fingerprint) = 64", name="request_fingerprint_is_sha256"),
)
