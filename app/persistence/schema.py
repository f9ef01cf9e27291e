"""The schema's version and its migration to the newest."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import NO_TENANT, Database


def alembic_config() -> Config:
    """Configure Alembic with the migrations beside `app`, or inside an installed wheel."""
    package = Path(__file__).parents[1]
    inside = package / "migrations"
    config = Config()
    config.set_main_option("script_location", str(inside if inside.is_dir() else package.parent / "migrations"))
    return config


def upgrade(db: Database, revision: str = "head") -> None:
    """Migrate a database, which may be empty, to a schema version in one transaction.

    Raise LedgerUnavailableError if a newer version of the service has changed it.
    """
    config = alembic_config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with db.migration() as tx:
        current = MigrationContext.configure(tx).get_current_revision()
        if current is not None and current not in known:
            raise LedgerUnavailableError(
                f"The database has the schema {current}, of a newer version of the service; serve it with that one."
            )
        config.attributes["connection"] = tx
        command.upgrade(config, revision)


def has_ledger(db: Database) -> bool:
    """Check whether a database exists and has the newest schema, without creating it."""
    if not db.exists():
        return False
    with db.read(NO_TENANT) as tx:
        return is_current(tx)


def is_current(tx: Connection) -> bool:
    """Check whether a database has the newest schema."""
    return MigrationContext.configure(tx).get_current_revision() == _newest()


@cache
def _newest() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()
