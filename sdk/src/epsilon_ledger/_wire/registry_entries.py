"""Entries of the public registry of deployments."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field of an entry that only people can fill in, and have not.

    `path` is its place in the entry, `metadata` the member of an account's metadata that fills it in, `words` what it
    asks for, `tier` from which of the registry's tiers on it is expected. Without a `required` one the registry refuses
    the entry.
    """

    path: str
    metadata: str
    words: str
    tier: int
    required: bool


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """An entry as a draft, by the schema of github.com/opendp/deployments-registry-data, and what it still lacks."""

    entry: Mapping[str, object]
    missing: tuple[MissingField, ...]
