"""The schema's version and its migration to the newest."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, select
from sqlalchemy.schema import CreateIndex, CreateTable

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import NO_TENANT, Database
from app.persistence.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

NEWEST: Final = "0001"
"""The last revision in `migrations/versions`, as a test checks. To ask alembic takes 0.1 s at each start."""

_VERSIONS: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's table."""


def alembic_config() -> "Config":
    """Configure Alembic with the migrations beside `app`, or inside an installed wheel."""
    from alembic.config import Config  # noqa: PLC0415 - as in `upgrade`

    package = Path(__file__).parents[1]
    inside = package / "migrations"
    config = Config()
    config.set_main_option("script_location", str(inside if inside.is_dir() else package.parent / "migrations"))
    return config


def upgrade(db: Database) -> None:
    """Migrate a database, which may be empty, to the newest schema in one transaction.

    Raise LedgerUnavailableError if a newer version of the service has changed it.
    """
    if has_ledger(db) or (db.dialect == "sqlite" and db.migrate(_create)):
        return
    # Imported here: it takes 0.1 s, and most starts find the newest schema or an empty file.
    from alembic import command  # noqa: PLC0415 - as said
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - as said

    config = alembic_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}

    def migrate(tx: Connection) -> None:
        current = _revision(tx)
        if current is not None and current not in known:
            raise LedgerUnavailableError(
                f"The database has the schema {current}, of a newer version of the service; serve it with that one."
            )
        config.attributes["connection"] = tx
        command.upgrade(config, "head")

    db.migrate(migrate)


def _create(tx: Connection) -> bool:
    """Create the newest schema in a SQLite file without a table, and return True; return False if it has some.

    The migrations would create the same (https://alembic.sqlalchemy.org/en/latest/cookbook.html, "Building an Up to
    Date Database from Scratch"), and on PostgreSQL its row-level security, too, which the tables do not declare.
    """
    if inspect(tx).get_table_names():
        return False
    for each in (*metadata.sorted_tables, _VERSIONS):
        tx.execute(CreateTable(each))
        for index in sorted(each.indexes, key=lambda index: str(index.name)):  # SQLite may prefer the first of two
            tx.execute(CreateIndex(index))
    tx.execute(insert(_VERSIONS).values(version_num=NEWEST))
    return True


def has_ledger(db: Database) -> bool:
    """Check whether a database exists and has the newest schema, without creating it."""
    if not db.exists():
        return False
    with db.read(NO_TENANT) as tx:
        return is_current(tx)


def is_current(tx: Connection) -> bool:
    """Check whether a database has the newest schema."""
    return _revision(tx) == NEWEST


def _revision(tx: Connection) -> str | None:
    """Read the revision of a database's schema, or None without one."""
    if not inspect(tx).has_table(_VERSIONS.name):
        return None
    return tx.execute(select(_VERSIONS.c.version_num)).scalar_one_or_none()
