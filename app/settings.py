"""Settings, frozen, from the environment."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.persistence.engine import POOL_SIZE
from app.service.access import DEFAULT_PLACEMENT


def _placements(given: object) -> object:
    """A JSON object in which every name stands once, and none is that of the default placement."""
    if not isinstance(given, str):
        return given
    right = 'write {"eu-2": "postgresql://USER@HOST/DATABASE"}'
    try:
        pairs = json.loads(given, object_pairs_hook=list)
    except ValueError:
        raise ValueError(f"it is no JSON; {right}") from None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError(f"it is no JSON object of placements and database URLs; {right}")
    twice = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if twice:
        raise ValueError(f"the placement {twice[0]!a} stands there twice")
    if DEFAULT_PLACEMENT in dict(pairs):
        raise ValueError(f"the placement {DEFAULT_PLACEMENT!r} is EPSILON_LEDGER_DATABASE_URL itself; name others")
    return dict(pairs)


PREFIX: Final = "EPSILON_LEDGER_"
OTHERS: Final = frozenset(f"{PREFIX}{name}" for name in ("URL", "API_KEY", "TORTURE", "FAULTS"))
"""Of the trainers' client and of this project's tests: no settings of the service, and no mistakes."""

PlacementName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Settings(BaseSettings):
    """What can be configured; each by an environment variable with the prefix EPSILON_LEDGER_.

    Args:
        database_url: sqlite:///FILE or postgresql://USER@HOST/DATABASE; by default a SQLite file in the working folder.
        database_pool_size: how many connections to each PostgreSQL a worker process keeps at the most.
        rate_limit_per_second: requests a second that a worker process takes of one key; 0: as many as come.
        rate_limit_burst: how many it takes at once of a key that was silent.
        rate_limit_failures_per_second: requests without a known key that it takes of one address; 0: as many as come.
            At once it takes ten times as many.
        signing_key_file: a PEM file with the Ed25519 private key that signs checkpoints and statements; empty: none.
        checkpoint_seconds: how often the history of each organisation is signed, if there is a key; 0: when asked only.
        placements: further databases, each with organisations of its own: a JSON object of names and URLs.
        webhooks_allow_private: whether webhooks may lead to addresses that are not public, and by http.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, hide_input_in_errors=True)

    database_url: Annotated[str, Field(repr=False)] = "sqlite:///epsilon-ledger.db"
    database_pool_size: Annotated[int, Field(ge=1, le=1000)] = POOL_SIZE
    rate_limit_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2000
    rate_limit_burst: Annotated[int, Field(ge=1)] = 4000
    rate_limit_failures_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20
    signing_key_file: str = ""
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3600
    placements: Annotated[
        dict[PlacementName, str], NoDecode, BeforeValidator(_placements), Field(repr=False, default_factory=dict)
    ]

    webhooks_allow_private: bool = False

    @property
    def database_urls(self) -> dict[str, str]:
        """The URL of every placement, the default one first."""
        return {DEFAULT_PLACEMENT: self.database_url, **self.placements}


def known_variables() -> list[str]:
    """The environment variables that are settings of the service."""
    return [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Variables that look like a setting and are none.

    Args:
        environment: the names of all variables; case does not matter.

    Returns:
        Those that nothing reads, in order.
    """
    known = {*known_variables(), *OTHERS}
    return sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)
