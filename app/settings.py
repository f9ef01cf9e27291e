"""Settings, frozen, from the environment."""

from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What can be configured; each by an environment variable with the prefix EPSILON_LEDGER_.

    Args:
        database_url: an SQLAlchemy URL; by default a SQLite file in the working folder.
    """

    model_config = SettingsConfigDict(env_prefix="EPSILON_LEDGER_", frozen=True)

    database_url: str = "sqlite:///epsilon-ledger.db"
