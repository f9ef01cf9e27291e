"""Table metadata, naming conventions, and the types of ids and times."""

from datetime import UTC, datetime

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    TypeDecorator,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem

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


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Reject a naive time; store UTC."""
        del dialect
        if value is None:
            return None
        assert value.tzinfo is not None, "moments in the ledger are aware"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware time."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def id_column(name: str, *, nullable: bool = False) -> Column[str]:
    """Build a column of ids."""
    return Column(name, String(ID_LENGTH), nullable=nullable)


def foreign_key(
    table: str, *, name: str | None = None, use_alter: bool = False, **columns: str
) -> ForeignKeyConstraint:
    """Build a foreign key within the organisation.

    `columns` maps each column of this table to the one that it references; `use_alter` adds the constraint after both
    tables.
    """
    return ForeignKeyConstraint(
        ["organisation_id", *columns],
        [f"{table}.{column}" for column in ("organisation_id", *columns.values())],
        name=name,
        use_alter=use_alter,
    )


def organisation_foreign_key() -> ForeignKeyConstraint:
    """Build the foreign key to the organisation that owns a row."""
    return ForeignKeyConstraint(["organisation_id"], ["organisations.id"])


def owned_table(name: str, key: tuple[str, ...], *parts: SchemaItem, **checks: str) -> Table:
    """Build a table of organisations' rows.

    The organisation's id leads the key. `checks` maps the names of check constraints to their conditions.
    """
    conditions = [CheckConstraint(condition, name=check) for check, condition in checks.items()]
    key_columns = PrimaryKeyConstraint("organisation_id", *key)
    return Table(name, metadata, id_column("organisation_id"), *parts, key_columns, *conditions)


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Build an index of the rows that satisfy a condition."""
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
