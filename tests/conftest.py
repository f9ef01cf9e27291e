"""What tests of several rooms share: fixtures, and what `servers`, `ledgers` and `databases` make them of."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres, pure_decisions
from tests.databases import NO_SERVER, need_postgresql, new_database
from tests.ledgers import SAMPLED, Furnish, Keys, Ledger, furnished, nothing, open_ledger, signing_key
from tests.processor_budget import ProcessorTimes
from tests.servers import LiveServer, command_line

__all__ = [
    "SAMPLED",
    "Furnish",
    "Keys",
    "Ledger",
    "LiveServer",
    "command_line",
    "furnished",
    "need_postgresql",
    "new_database",
    "open_ledger",
    "signing_key",
]

pure_decisions.enforce()

# Where tests have their SQLite files. None of them pulls the plug: what a killed process wrote stays there, too.
if (memory := postgres.in_memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# The same examples each time, so that a stop fails by what was changed; `make soak` is where new ones are looked for.
settings.register_profile(
    "ledger", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", settings.get_profile("ledger"), max_examples=1000, derandomize=False)
settings.load_profile("ledger")


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def furnishing(request: pytest.FixtureRequest) -> Furnish | None:
    """What is in a new database already; None: nothing, not even a file.

    A module's `FURNISHED` says what is in a ledger by the name of the fixture that stands for it.
    """
    named: dict[str, Furnish] = getattr(request.module, "FURNISHED", {})
    named = named | {"ledger": named.get("ledger", nothing)}
    return next((furnish for name, furnish in named.items() if name in request.fixturenames), None)


@pytest.fixture
def made(furnishing: Furnish, database_kind: str) -> Any:  # noqa: ANN401 - of the test's own
    """What the function made that furnished the ledger."""
    return furnished(database_kind, furnishing)[0]


@pytest.fixture
def ledger(tmp_path: Path, database_url: str) -> Iterator[Ledger]:
    with open_ledger(tmp_path, database_url) as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of many short tests come last: whichever worker ends first does not wait long for the other."""
    items.sort(key=lambda item: item.path.parent.name == "api")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        kinds: list[object] = [] if "postgresql" in marks else ["sqlite"]
        both = "TEST_BOTH_DATABASES" in os.environ and "sqlite" not in marks
        if both or marks & {"postgresql", "both_databases"}:
            kinds.append(pytest.param("postgresql", marks=pytest.mark.postgresql))
        metafunc.parametrize("database_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def database_kind(request: pytest.FixtureRequest) -> str:
    """Either sqlite or postgresql; a test that asks for it, or for a URL, runs on both."""
    kind: str = request.param
    if kind == "postgresql":
        need_postgresql()
    return kind


@pytest.fixture
def database_url(database_kind: str, tmp_path: Path, furnishing: Furnish | None) -> Iterator[str]:
    """A new database for one test: of PostgreSQL with its tables, or a SQLite file, not there unless furnished."""
    with new_database(database_kind, tmp_path, furnish=furnishing) as url:
        yield url


@pytest.fixture
def empty_database_url(database_kind: str, tmp_path: Path) -> Iterator[str]:
    """A new database without a table, for one test."""
    with new_database(database_kind, tmp_path, migrated=False) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(database_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A new database for the tests of a module."""
    with new_database(database_kind, tmp_path_factory.mktemp("database")) as url:
        yield url


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ProcessorTimes())


def pytest_collection() -> None:
    """Let nothing be looked for that could be thrown away: all that is collected stays to the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let no later look for garbage walk through modules and tests again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a request makes thousands of objects, and the looks took a thirtieth of the time
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_SERVER in str(report.longrepr)]
    if skipped:
        terminalreporter.section("POSTGRESQL WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(f"{len(skipped)} tests were skipped. {skipped[0].longrepr[-1]}")


def pytest_unconfigure() -> None:
    postgres.remove_shared()
