"""Random scripts of an adapter: hostile ones get nothing that is not charged, honest ones are not stopped.

An action is what a line of a script does. The dice choose a kind's actions, and begin new processes of one run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tests.adapter_contract import Script
from tests.sdk.fake_ledger import FakeRun

NOISE: Final = 0.02
"""Noise multiplier with which a release shows the sum, and what of it is noise."""
ROUGHLY: Final = 1.6
"""Of what is estimated: below 2, the smallest that goes wrong, and above all chance."""
ALIKE: Final = 0.6
"""Correlation of two releases' noise from which it is no chance: 9 deviations of that of 250 numbers."""
CAPACITY: Final = 10**6


@dataclass(frozen=True)
class Action:
    """What a script does between two draws.

    Args:
        do: gets the script and the dice.
        weight: how often, among the others.
        draws: whether the script draws a sample first.
        left: number of draws that it leaves without a release.
    """

    do: Callable[[Any, Random], object]
    weight: int = 1
    draws: bool = False
    left: int = 0


Actions = dict[str, Action]


def take(script: Script, _: Random) -> None:
    """Step on the sample drawn last, as the loop of the framework does."""
    script.take()


def evaluate_around(script: Script, _: Random) -> None:
    """Evaluate on the training's own data before and after a step."""
    script.evaluate()
    script.take()
    script.evaluate()


def take_twice(script: Script, _: Random) -> None:
    for _again in range(2):
        script.take()


HONEST: Final[Actions] = {
    "step": Action(take, 10, draws=True),
    "evaluate": Action(evaluate_around, draws=True),
}
"""Of every adapter."""
HOSTILE: Final[Actions] = {
    "step": Action(take, 10, draws=True),
    "evaluate": Action(lambda script, _: script.evaluate()),
    "skip": Action(lambda *_: None, 2, draws=True),
    "step again": Action(take, 2),
    "step twice": Action(take_twice, 1, draws=True),
    "repeat noise": Action(lambda script, _: script.repeat_noise(), 2),
}
"""Of every adapter; what its script cannot do is left out."""
PROCESSES: Final = ("save", "restart", "resume", "restore", "add parameters", "repeat record")
"""What is done to the whole script."""


class Play:
    """A training whose script the dice write, and an observer of all that its processes release.

    Args:
        kind: what is tried.
        seed: of the dice.
        honest: whether the script does only what it may.
    """

    def __init__(self, kind: type["RandomScripts"], seed: int, *, honest: bool) -> None:
        self.dice = Random(seed)  # noqa: S311 - to do the same again
        self.kind, self.honest = kind, honest
        self.actions = kind.honest if honest else kind.hostile
        self.scripts: list[Any] = []
        self.trace: list[str] = []
        self.saved: object = None
        self.left = 0
        self.begin()

    @property
    def script(self) -> Any:  # noqa: ANN401 - of the kind
        return self.scripts[-1]

    def begin(self, state: object = None) -> None:
        """Begin a process of the run, which may load what another one has saved."""
        self.end()
        self.kind.seed()
        run = FakeRun(CAPACITY, attempt=1 + len(self.scripts))
        if self.scripts:
            run.ledger.events.extend(self.script.run.asked)
            run.refresh()
        self.scripts.append(self.kind.script(run, noise_multiplier=NOISE, dice=self.dice))
        if state is not None:
            self.script.restore(state)

    def end(self) -> None:
        if self.scripts:
            self.script.end()

    def act(self, name: str) -> None:
        self.trace.append(name)
        script = self.script
        match name:
            case "save":
                self.saved = script.checkpoint()
            case "restart":
                self.begin()
            case "resume" if self.saved is not None:
                self.begin(self.saved)
            case "restore" if self.saved is not None:
                script.restore(self.saved)
            case "add parameters":
                script.add_parameters()
            case "repeat record":
                script.repeat_record()
            case _ if name in self.actions:
                action = self.actions[name]
                self.left += action.left
                if action.draws:
                    script.draw()
                script.perform(lambda: action.do(script, self.dice))

    def play(self) -> None:
        """Do some actions, and judge each."""
        processes = self.kind.processes_of_honest if self.honest else self.kind.processes
        weights = {name: action.weight for name, action in self.actions.items()} | dict.fromkeys(processes, 1)
        self.act("step")
        for name in self.dice.choices(list(weights), list(weights.values()), k=self.dice.randrange(4, 16)):
            try:
                self.act(name)
            except Exception as error:
                if self.honest:
                    raise
                self.trace.append(f"{type(error).__name__}: {error}"[:90])
                if self.dice.random() < 0.3:  # many leave nothing that goes on
                    self.act(self.dice.choice(("restart", "resume")))
        self.end()

    def judge(self) -> None:
        """Require that each release was charged, with fresh noise, and moved by the clipping norm at most."""
        paid = 0
        for script in self.scripts:
            assert len(script.releases) == len(script.payments)
            asked = len(script.run.ledger.requests)
            assert script.drawn <= asked + script.outstanding, f"{script.drawn} drawn, {asked} charged or refused"
            for number, (release, payment) in enumerate(zip(script.releases, script.payments, strict=True)):
                assert payment.charged > paid, "released without a charge"
                paid = payment.charged
                try:
                    self._judge_release(script, release, payment)
                except AssertionError as error:
                    error.add_note(f"release {number} of {len(script.releases)}")
                    raise
        noises = [script.quiet(release) for script in self.scripts for release in script.releases]
        assert not alike(noises), f"repeated noise: {alike(noises)}"
        if self.honest:
            charged, released = len(self.script.run.asked), sum(len(script.releases) for script in self.scripts)
            assert released, "nothing was trained"
            assert released + max(0, self.left - 1) <= charged <= released + self.left, "charged more than was taken"

    @staticmethod
    def _judge_release(script: Any, release: NDArray[Any], payment: Any) -> None:  # noqa: ANN401 - of the kind
        event = script.run.asked[payment.charged - 1]
        rate, noise = of_event(event)
        assert rate >= payment.rate * (1 - 1e-6), f"drawn at {payment.rate}, charged at {rate}"
        quiet = script.quiet(release)
        deviation = float(np.sqrt(np.mean(quiet**2)))
        moved = np.sqrt(max(0.0, float(np.sum(release**2) - np.sum(quiet**2))))
        assert np.isfinite(deviation), "no number was released"
        chance = deviation * (np.sqrt(release.size - quiet.size) + 4)
        assert moved <= ROUGHLY * deviation / noise + chance, (
            f"moved by {moved} with noise of {deviation}, which is charged as {noise}"
        )


class RandomScripts:
    """What a kind of adapter is tried with."""

    script: ClassVar[Callable[..., Any]]
    seed: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    honest: ClassVar[Actions] = HONEST
    hostile: ClassVar[Actions] = HOSTILE
    processes: ClassVar[Iterable[str]] = PROCESSES
    processes_of_honest: ClassVar[Iterable[str]] = ("save", "resume")


def of_event(event: Any) -> tuple[float, float]:  # noqa: ANN401 - any event
    """Return the sampling probability and the noise multiplier of an event."""
    rate = event.get("sampling_probability", 1.0)
    while "noise_multiplier" not in event:
        event = event["event"]
    return rate, event["noise_multiplier"]


def alike(noises: list[NDArray[Any]]) -> list[tuple[int, int]]:
    """Return which releases have the noise of another one, if scaled, too."""
    if len(noises) < 2:
        return []
    likeness = np.abs(np.corrcoef(np.stack(noises)))
    return [(int(one), int(other)) for one, other in np.argwhere(np.triu(likeness, 1) > ALIKE)]
