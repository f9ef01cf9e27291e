"""Processor time of the tests by folder: measured, printed, recorded, and held to the budgets of `tests/README.md`.

`make test RECORD=1` writes what a whole run took into `tests/processor_seconds.json`, in seconds of the machine of the
budgets. As a part of `make check`, `python -m tests.processor_budget` fails for a folder whose recorded time is more
than a fifth above its budget.
"""

import json
import os
import re
import sys
import time
import timeit
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

TESTS: Final = Path(__file__).parent
RECORD: Final = TESTS / "processor_seconds.json"
BUDGETS: Final = TESTS / "README.md"
TOLERANCE: Final = 1.2
WORK: Final = "{str(each): each for each in range(1_000)}"
WORK_SECONDS: Final = 73e-6
"""Processor seconds that `WORK` takes on the machine of the budgets."""

ROW: Final = re.compile(r"^\| `([a-z/_]+)` \| (\d+) \|", re.MULTILINE)
"""A row of the table of budgets: a folder below `tests`, and its seconds."""


class ProcessorTimes:
    """Measures a test process with all that it starts, whenever the tests of another folder begin."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._folder: str | None = None
        self._before = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Look at the clock of processes where a folder begins or ends."""
        folder = _folder_of(item)
        if folder != self._folder:
            self._folder, self._before = folder, _processor_seconds()
        result = yield
        if nextitem is None or _folder_of(nextitem) != folder:
            self.seconds[folder] += _processor_seconds() - self._before
            self._folder = None
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's times to the process that prints them."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_seconds"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - a class of xdist
        """Add the times of a worker."""
        for folder, seconds in getattr(node, "workeroutput", {}).get("processor_seconds", {}).items():
            self.seconds[folder] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the sum of each folder, and record them if asked to."""
        if not self.seconds or hasattr(terminalreporter.config, "workeroutput"):
            return
        terminalreporter.section("processor seconds by folder")
        for folder, seconds in sorted(self.seconds.items(), key=lambda each: -each[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {folder}")
        terminalreporter.write_line(f"{sum(self.seconds.values()):8.1f}  all")
        machine = slowness()
        terminalreporter.write_line(f"{machine:8.2f}  seconds here for one of the machine of the budgets")
        if os.environ.get("RECORD_PROCESSOR_SECONDS"):
            known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
            known |= {folder: round(seconds / machine, 1) for folder, seconds in self.seconds.items()}
            RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def slowness() -> float:
    """Measure how many seconds of processor time this machine takes for one of the machine of the budgets."""
    return min(timeit.repeat(WORK, timer=time.process_time, number=500, repeat=10)) / (500 * WORK_SECONDS)


def over_budget(recorded: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """Find what is wrong with the recorded times, by folder."""
    found = [f"{folder}: no budget in {BUDGETS.name}" for folder in sorted(recorded.keys() - budgets.keys())]
    found += [f"{folder}: a budget, and no recorded time" for folder in sorted(budgets.keys() - recorded.keys())]
    for folder in sorted(recorded.keys() & budgets.keys()):
        if recorded[folder] > TOLERANCE * budgets[folder]:
            found.append(f"{folder}: {recorded[folder]:.0f} s of processor, budget {budgets[folder]:.0f} s")
    return found


def _folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def _processor_seconds() -> float:
    """The processor time of this process and all that it started, the ended ones included."""
    total, this = 0.0, psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def main() -> None:
    """Fail if the last recorded run was above a budget."""
    budgets = {folder: float(seconds) for folder, seconds in ROW.findall(BUDGETS.read_text())}
    found = over_budget(json.loads(RECORD.read_text()), budgets)
    for line in found:
        print(line)
    sys.exit(f"{len(found)} folders of tests are not within their budget" if found else 0)


if __name__ == "__main__":
    main()
