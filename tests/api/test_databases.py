"""Which modules of tests run on both databases."""

from pathlib import Path

from tests.conftest import ON_BOTH


def test_every_module_that_is_said_to_run_on_both_databases_is_there() -> None:
    """One that is renamed would run on SQLite alone, and nobody would notice."""
    for folder, modules in ON_BOTH.items():
        there = {path.stem.removeprefix("test_") for path in (Path(__file__).parents[1] / folder).glob("test_*.py")}
        assert there
        assert (modules or set()) <= there, folder
