"""Table metadata, naming conventions, and the types of ids and times."""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
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
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem

from app.ledger import ids
from app.ledger.audit import utc_text
from app.ledger.runs.origins import Origins, origins_text, read_origins

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
"""Of the ids that are stored as text: those of neither organisations nor accounts."""

_OF_ACCOUNTS: Final = frozenset({"organisation_id", "account_id", "ancestor_id", "run_id"})
"""Names of key columns with ids that are stored as integers."""


def _utc_text(value: datetime | None) -> str | None:
    if value is None:
        return None
    assert value.tzinfo is not None, "moments in the ledger are aware"
    text = utc_text(value)
    return f"{text[:10]} {text[11:26]}"  # without the T and the offset


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """Write SQLite's text faster than SQLAlchemy does."""
        return _utc_text if dialect.name == "sqlite" else super().bind_processor(dialect)

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


class _StoredNumbers(dict[str | None, int | None]):
    """The integers of recently written ids, which a lookup gets without a call of Python.

    Only ids are kept: a request may name texts of any length.
    """

    MOST = 65_536

    def __missing__(self, value: str | None) -> int | None:
        """Compute the integer; for a text that is not an id, one that no row has."""
        number = None if value is None else ids.number_of(value)
        if number != ids.NO_NUMBER:
            if len(self) >= self.MOST:
                self.clear()
            self[value] = number
        return number


_NUMBERS: Final = _StoredNumbers()

stored_number: Final = _NUMBERS.__getitem__
"""Get the integer of an id; None of None."""


class NumberedId(TypeDecorator[str]):
    """An id of an organisation or account, stored as its integer (`app.ledger.ids`)."""

    impl = BigInteger
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], int | None]:
        """Return what gets the integer."""
        del dialect
        return stored_number

    def process_result_value(self, value: int | None, dialect: Dialect) -> str | None:
        """Return the id."""
        del dialect
        return None if value is None else ids.id_of(value)


class Sha256Hex(TypeDecorator[str]):
    """A sha256 hash in hexadecimal digits, stored as its 32 bytes.

    Args:
        optional: whether a row may have none.
    """

    impl = LargeBinary(32)
    cache_ok = True

    def __init__(self, *, optional: bool = False) -> None:
        super().__init__()
        self.optional = optional

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], bytes | None]:
        """Return what gets the bytes."""
        del dialect
        return _optional_bytes if self.optional else bytes.fromhex

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Return the digits."""
        del dialect
        return None if value is None else value.hex()


def _optional_bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


class StartsFrom(TypeDecorator[Origins]):
    """What a run starts from, as canonical JSON; None: nothing was declared."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Origins | None, dialect: Dialect) -> str | None:
        """Return the text."""
        del dialect
        return None if value is None else origins_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Origins | None:
        """Return the origins."""
        del dialect
        return None if value is None else read_origins(value)


_SHA256: Final = LargeBinary(32)


def id_column(name: str, *, nullable: bool = False) -> Column[str]:
    """Build a column of ids."""
    return Column(name, NumberedId if name in _OF_ACCOUNTS else String(ID_LENGTH), nullable=nullable)


Checked = tuple[Column[Any], CheckConstraint]
"""A column, and the check of its values as a constraint of the table."""


def number_column(name: str, kind: type[Integer], *, least: int = 0, **options: Any) -> Checked:  # noqa: ANN401 - Column's
    """Build a column of numbers that are at least 0 or 1."""
    return _checked(name, kind, f"{name} >= {least}", "positive" if least else "nonnegative", **options)


def text_column(name: str, kind: String, **options: Any) -> Checked:  # noqa: ANN401 - Column's
    """Build a column of texts that are not empty."""
    return _checked(name, kind, f"{name} <> ''", "not_empty", **options)


def enum_column(name: str, length: int, values: type[StrEnum], *, nullable: bool = False) -> Checked:
    """Build a column of an enumeration's values."""
    known = ", ".join(f"'{value}'" for value in values)
    return _checked(name, String(length), f"{name} IN ({known})", "known", nullable=nullable)


def digest_column(name: str, kind: Sha256Hex | LargeBinary = _SHA256, *, nullable: bool = False) -> Checked:
    """Build a column of sha256 hashes, which Python has as bytes or as hexadecimal digits."""
    return _checked(name, kind, f"length({name}) = 32", "is_sha256", nullable=nullable)


def _checked(name: str, kind: Any, condition: str, suffix: str, *, nullable: bool = False, **options: Any) -> Checked:  # noqa: ANN401 - Column's
    return Column(name, kind, nullable=nullable, **options), CheckConstraint(condition, name=f"{name}_{suffix}")


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


def reference(name: str, table: str, *, nullable: bool = False) -> tuple[Column[str], ForeignKeyConstraint]:
    """Build a column with the id of a row of a table within the organisation, and its foreign key."""
    key = ForeignKeyConstraint(["organisation_id", name], [f"{table}.organisation_id", f"{table}.id"])
    return Column(name, NumberedId if table == "accounts" else String(ID_LENGTH), nullable=nullable), key


def organisation_foreign_key() -> ForeignKeyConstraint:
    """Build the foreign key to the organisation that owns a row."""
    return ForeignKeyConstraint(["organisation_id"], ["organisations.id"])


def owned_table(name: str, *parts: SchemaItem, key: tuple[str, ...] = ("id",), **checks: str) -> Table:
    """Build a table of organisations' rows.

    The organisation's id leads the key. Columns of the key that are not among the parts have ids, and come first.
    `checks` maps the names of check constraints to their conditions.
    """
    given = {part.name for part in parts if isinstance(part, Column)}
    ids = [id_column(column) for column in ("organisation_id", *key) if column not in given]
    conditions = [CheckConstraint(condition, name=check) for check, condition in checks.items()]
    return Table(name, metadata, *ids, *parts, PrimaryKeyConstraint("organisation_id", *key), *conditions)


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Build an index of organisations' rows that satisfy a condition."""
    condition = text(where)
    return Index(name, "organisation_id", *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
