"""What one mutation is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One rule, broken.

    Args:
        name: what is broken.
        file: where.
        line: what stands there; it must stand there once.
        instead: what is put there.
        tests: that must fail then.
        only: of these tests, by pytest's -k.
    """

    name: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]
    only: str = "sqlite or not postgresql"
