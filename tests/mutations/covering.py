"""Which tests run a line, and how long each of them takes: read from a run of the suite with coverage by test."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate, chain
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from coverage import CoverageData

SPECIFIC_FILES: Final = 6
"""Number of files of tests that are tried first: those that are most about a line."""


class Covering:
    """The tests of a suite by the lines that they run.

    Args:
        root: of the repository.
        coverage: data file with a context for each test, as `pytest --cov-context=test` writes it.
        report: JUnit's XML of the same run.
        longest_seconds: of the tests that are tried for one line, the quickest first.
    """

    def __init__(self, root: Path, coverage: Path, report: Path, longest_seconds: float) -> None:
        self._root = root
        self._coverage = str(coverage)  # what coverage reads cannot be given to another process
        self._longest = longest_seconds
        self._seconds = {}  # of each test that passed
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
            if not any(case.findall(other) for other in ("failure", "error", "skipped")):
                found = _node_of(root, case.attrib["classname"])
                self._seconds[f"{found}::{case.attrib['name']}"] = float(case.attrib["time"])
        self._tests_in = Counter(test.partition("::")[0] for test in self._seconds)

    def tests(self, file: str, row: int) -> list[str]:
        """Find the tests that run a line, the quickest first; for a line run at import, those that run its file."""
        data = CoverageData(basename=self._coverage)
        data.read()
        by_row = data.contexts_by_lineno(str(self._root / file))
        found = _tests_of(by_row.get(row, ()))
        if not found or "" in by_row[row]:
            found |= _tests_of(chain.from_iterable(by_row.values()))
        return self._quickest(found)

    def of_room(self, file: str) -> list[str]:
        """Find the tests of a file's room, the quickest first: what runs once, at import or for a cache, is theirs."""
        room = f"tests/{Path(file).parts[1] if file.startswith('app/') else 'sdk'}/"
        return self._quickest(test for test in self._seconds if test.startswith(room))

    def _quickest(self, tests: Iterable[str]) -> list[str]:
        chosen = sorted(self._seconds.keys() & set(tests), key=lambda test: (self._seconds[test], test))
        totals = accumulate(map(self._seconds.__getitem__, chosen))
        return chosen[: sum(total <= self._longest for total in totals)]

    def specific(self, tests: Iterable[str]) -> list[str]:
        """Of these tests, those in the files that are most about their line."""
        by_file = defaultdict(list)
        for test in tests:
            by_file[test.partition("::")[0]].append(test)
        share = {file: len(found) / self._tests_in[file] for file, found in by_file.items()}
        first = sorted(by_file, key=lambda file: (-share[file], sum(map(self._seconds.__getitem__, by_file[file]))))
        return [test for file in first[:SPECIFIC_FILES] for test in by_file[file]]


def _node_of(root: Path, classname: str) -> str:
    """Name a file of tests, and the classes within it, as pytest takes them from the command line."""
    parts = classname.split(".")
    ends = range(1, len(parts) + 1)
    end = next((end for end in ends if root.joinpath(*parts[:end]).with_suffix(".py").is_file()), len(parts))
    return "::".join(["/".join(parts[:end]) + ".py", *parts[end:]])


def _tests_of(contexts: Iterable[str]) -> set[str]:
    """The tests of contexts, which also tell set-up, call and tear-down apart."""
    return {context.rpartition("|")[0] for context in contexts if "|" in context}
