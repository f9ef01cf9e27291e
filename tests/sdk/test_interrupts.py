"""Ctrl-C at the worst moments, handlers of signals, threads: no step is handed out twice, or for nothing."""

import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
import pytest

from epsilon_ledger import Event, _net, _run
from tests.reliability.conftest import ROUNDS
from tests.sdk.simulation import LOUD, Simulation
from tests.sdk.test_grants import every_way, in_grants
from tests.soak import thinned

FILES = {str(file) for room in (_net, _run) for file in Path(str(room.__file__)).parent.glob("*.py")}
"""Lines between two interrupts."""


class Interruption:
    """Ctrl-C before a line of some files of the client is run.

    Python takes no signal between the body of a `with` and its end, nor where a `try` stands, so there is none there.
    """

    def __init__(self, at: int, files: Collection[str]) -> None:
        self.lines = 0
        self._at, self._files = at, files

    def __call__(self, frame: FrameType, what: str, _: object) -> "Interruption | None":
        name = frame.f_code.co_filename
        if name not in self._files:
            return None
        if what == "line" and not getline(name, frame.f_lineno).lstrip().startswith(("with ", "try:")):
            self.lines += 1
            if self.lines == self._at:
                raise KeyboardInterrupt
        return self


@contextmanager
def interrupted(at: int, files: Collection[str] = FILES) -> Iterator[Interruption]:
    before, tracing = sys.gettrace(), Interruption(at, files)
    sys.settrace(tracing)
    try:
        yield tracing
    finally:
        sys.settrace(before)


def insisting(ask: Callable[[], object]) -> None:
    try:
        ask()
    except KeyboardInterrupt:
        ask()


def faint(step: int) -> Event:
    """Less noise every third step, and so much that the budget never ends."""
    return {"type": "gaussian", "noise_multiplier": 5000.0 - step // 3}


def work(simulation: Simulation, ahead: dict[str, Any], at: int = 0) -> int:
    """Train, with an interrupt before a line; returns how many lines there were."""
    run = simulation.run(**ahead, event=faint(0), schedule=faint)
    with interrupted(at) as lines:
        for step in range(8):
            insisting(lambda: simulation.authorize(run))
            if step == 5:
                insisting(lambda: simulation.authorize(run, event=faint(300)))
                insisting(run.preview)
        insisting(run.complete)
    assert simulation.covers()
    excess = simulation.charged(run) - simulation.released.pop(run.id)
    assert excess.total() <= 1, f"interrupted at line {at}, {excess} was charged for nothing"
    return lines.lines


@every_way
@pytest.mark.parametrize("stride", thinned([800, 30], 2))
def test_ctrl_c_at_any_line_charges_one_step_too_many_at_most(
    simulation: Simulation, ahead: dict[str, Any], stride: int
) -> None:
    lines = work(simulation, ahead)
    for at in range(1, lines + 1, max(1, stride // ROUNDS)):
        work(simulation, ahead, at)


def test_thread_that_breaks_off_is_told_of_once(simulation: Simulation) -> None:
    run = simulation.run(prefetch=4, prefetch_in_background=True)
    broken: list[str] = []

    def break_off(request: httpx2.Request) -> None:
        if threading.current_thread() is not threading.main_thread() and not broken:
            broken.append(request.url.path)
            raise MemoryError

    simulation.before = break_off
    for _ in range(4):
        if not broken:
            simulation.authorize(run)
    while run._inflight is not None:
        with pytest.raises(MemoryError):
            run.authorize()
    simulation.take(run, 6)
    run.complete()
    assert simulation.exact(run)


def test_signal_in_middle_of_call_cannot_make_another_one(simulation: Simulation) -> None:
    run = simulation.run(prefetch=5)

    def handler(*_: object) -> None:
        run.complete()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        simulation.after = lambda _: signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(RuntimeError, match="in the middle of a call"):
            run.authorize()
    finally:
        signal.signal(signal.SIGUSR1, before)
        simulation.after = lambda _: None
    simulation.take(run, 6)
    run.complete()
    assert simulation.exact(run)


@in_grants
def test_threads_share_run(simulation: Simulation, ahead: dict[str, Any]) -> None:
    threads, steps = 4, 5
    run = simulation.run(**ahead)
    start = threading.Barrier(threads)

    def take(_: int) -> list[int]:
        start.wait()
        return [simulation.authorize(run, event=LOUD).first_step for _ in range(steps)]

    with ThreadPoolExecutor(threads) as pool:
        numbers = [number for taken in pool.map(take, range(threads)) for number in taken]
    assert sorted(numbers) == list(range(threads * steps))
    run.complete()
    assert simulation.exact(run)
