"""The schema's version, and the way to the newest."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from app.persistence.engine import Database


def alembic_config() -> Config:
    """Alembic's configuration for this installation.

    Returns:
        It finds the migrations beside `app` in a checkout, and inside it in an installed wheel.
    """
    package = Path(__file__).parents[1]
    inside = package / "migrations"
    config = Config()
    config.set_main_option("script_location", str(inside if inside.is_dir() else package.parent / "migrations"))
    return config


def upgrade(db: Database) -> None:
    """Bring a database to the newest schema, in one transaction.

    Args:
        db: the ledger's database; empty, or of any earlier version.
    """
    config = alembic_config()
    with db.write() as tx:
        config.attributes["connection"] = tx
        command.upgrade(config, "head")


def is_current(tx: Connection) -> bool:
    """Whether a database has the newest schema."""
    newest = ScriptDirectory.from_config(alembic_config()).get_current_head()
    return MigrationContext.configure(tx).get_current_revision() == newest
