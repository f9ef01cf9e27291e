"""Response schemas of entries of the public registry of deployments."""

from typing import Any

from pydantic import Field

from app.api.schemas.common import Output


class MissingField(Output):
    """A field of an entry that only people can fill in, and have not."""

    path: str = Field(description="Its place in the entry.")
    metadata: str = Field(description="The member of an account's metadata that fills it in.")
    words: str = Field(description="What it asks for.")
    tier: int = Field(description="From which of the registry's tiers on it is expected: 1, 2 or 3.")
    required: bool = Field(description="Whether the registry refuses the entry without it.")


class RegistryEntry(Output):
    """An entry of the public registry of deployments, as a draft, and what it still lacks."""

    entry: dict[str, Any] = Field(
        description="By the schema of github.com/opendp/deployments-registry-data; JSON is also YAML."
    )
    missing: list[MissingField]
