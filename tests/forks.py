"""Run the tests in forks of the process that collected them: `pytest --forks N`.

To import and to collect everything takes as long as a thousand tests. Here it is done once for all processes, which
share what it leaves in memory. The tests of a file stay together, since they share fixtures; a fork that begins with
the last test of a file asks for its next file.
"""

import atexit
import os
import sys
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from typing import Any

import pytest
from _pytest.capture import FDCapture
from _pytest.tmpdir import TempPathFactory


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Report what forks run, or, in a fork, run it; without forks leave it to pytest."""
    number = session.config.getoption("--forks")
    if not number or session.testsfailed or session.config.option.collectonly:
        return None
    folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # it has no public name
    sys.stdout.flush()
    forks: dict[Connection, int] = {}
    for place in range(number):
        here, there = Pipe()
        process = os.fork()
        if process == 0:
            for other in (here, *forks):
                other.close()
            session.config.option.basetemp = folder / f"fork-{place}"
            _run(session, there)
            return True
        there.close()
        forks[here] = process
    _Forks(session, forks).report()
    return True


@dataclass
class _Forks:
    """The forks that still run, by their connections, and the files that none of them has yet."""

    session: pytest.Session
    running: dict[Connection, int]

    def __post_init__(self) -> None:
        numbered = enumerate(self.session.items)
        self._files = deque([[place for place, _ in file] for _, file in groupby(numbered, lambda each: each[1].path)])
        self._at: dict[Connection, str] = {}

    def report(self) -> None:
        """Hand files out and report the tests' outcomes, until all forks have ended."""
        hook = self.session.config.hook
        terminal: Any = self.session.config.pluginmanager.getplugin("terminalreporter")
        terminal.showfspath = False
        while self.running:
            for fork in wait(list(self.running)):
                assert isinstance(fork, Connection)
                try:
                    kind, said = fork.recv()
                except EOFError:
                    self._end(fork)
                    continue
                if kind == "file":
                    fork.send(self._files.popleft() if self._files and not self._stopping() else [])
                elif kind == "start":
                    self._at[fork] = said[0]
                    hook.pytest_runtest_logstart(nodeid=said[0], location=said[1])
                elif kind == "finish":
                    hook.pytest_runtest_logfinish(nodeid=said[0], location=said[1])
                else:
                    report = hook.pytest_report_from_serializable(config=self.session.config, data=said)
                    hook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _stopping(self) -> bool:
        return bool(self.session.shouldfail or self.session.shouldstop)

    def _end(self, fork: Connection) -> None:
        """Stop all if a fork ended before it had run what it was given."""
        fork.close()
        _, status = os.waitpid(self.running.pop(fork), 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            self.session.shouldstop = f"a fork ended with {code} at {self._at.get(fork, 'no test')}"


class _Reporter:
    """Tells the first process what a fork does."""

    def __init__(self, config: pytest.Config, first: Connection) -> None:
        self._config = config
        self._first = first

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._first.send(("start", (nodeid, location)))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._first.send(("finish", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        written = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._first.send(("report", written))


def _run(session: pytest.Session, first: Connection) -> None:
    """Run file after file, in a fork."""
    _begin(session.config, first)
    first.send(("file", None))
    places = deque(first.recv())
    while places:
        item = session.items[places.popleft()]
        if not places:
            first.send(("file", None))
            places.extend(first.recv())
        following = session.items[places[0]] if places else None
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:
            return


def _begin(config: pytest.Config, first: Connection) -> None:
    """Give a fork streams, a folder and a reporter of its own."""
    atexit._clear()  # what this process does at its end is what begins in it
    manager = config.pluginmanager
    capture: Any = manager.getplugin("capturemanager")
    for stream in (capture._global_capturing.out, capture._global_capturing.err):
        if isinstance(stream, FDCapture):  # modules keep its Python object, so the file under it is another one
            with TemporaryFile() as own:
                os.dup2(own.fileno(), stream.tmpfile.fileno())
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
    config.workerinput = {}  # type: ignore[attr-defined]  # by it pytest knows that another process keeps its cache
    for name in ("terminalreporter", "terminalprogress-plugin"):
        manager.unregister(name=name)
    manager.register(_Reporter(config, first))
