"""The schema's version and its migration to the newest."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, column, inspect, select, table

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import NO_TENANT, Database

if TYPE_CHECKING:
    from alembic.config import Config

NEWEST: Final = "0001"
"""The last revision in `migrations/versions`, as a test checks. To ask alembic takes 0.1 s at each start."""

_VERSIONS: Final = table("alembic_version", column("version_num"))


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
    if has_ledger(db):
        return
    # Imported here: it takes 0.1 s, and most starts find the newest schema.
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
