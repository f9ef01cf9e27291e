"""Alembic environment: one connection, from the caller or from the settings."""

from alembic import context
from sqlalchemy import Connection

from app.configuration.settings import Settings
from app.persistence.database import Database
from app.persistence.tables import metadata


def run(connection: Connection) -> None:
    """Migrate over a connection in the caller's transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    database = Database(Settings().database_url)
    database.migrate(run)
    database.dispose()
