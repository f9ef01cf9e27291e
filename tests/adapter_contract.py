"""The contract of an adapter (docs/contributing/adapters.md), as tests that each adapter's module inherits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from epsilon_ledger import LedgerError
from tests.sdk.fake_ledger import FakeRun

LEAST_NOISE: Final = 1e-3
"""Noise multiplier with which a release shows the sum itself."""
STOPS: Final = (LedgerError, RuntimeError, ValueError)
"""Errors by which an adapter stops a script."""
NOT_WRITTEN: Final = "this script cannot do that: write it, or name the case in NOT_APPLICABLE"
REPEATED_SHARE: Final = 0.2
"""Of the coordinates of a release, from which their equality with another one's is no chance."""


class Payment(NamedTuple):
    """What there was when a release was seen.

    Args:
        charged: number of charges of the run.
        rate: sampling probability with which the sample was drawn.
    """

    charged: int
    rate: float


NO_STATE: Final = {
    "test_noise_that_is_brought_back_is_not_released_again": "its noise is the operating system's, without a state"
}
"""Why that case does not concern an adapter whose noise is drawn by the client's own mechanisms."""


class Script(ABC):
    """A training script with one adapter, and an observer who sees every release.

    Each sample has all records. Record 0 has a gradient far above the clipping norm, all others have none.

    Args:
        run: to charge.
        noise_multiplier: of each step.
        canary: whether record 0 has a gradient; without it, a release is noise alone.
        dice: of a random script, which choose what its training is like; None: as most are.
    """

    bound: float
    """Norm by which record 0 moves a release: the clipping norm."""

    def __init__(
        self, run: FakeRun, *, noise_multiplier: float = 1.0, canary: bool = True, dice: Random | None = None
    ) -> None:
        self.run, self.noise_multiplier, self.canary, self.dice = run, noise_multiplier, canary, dice
        self.releases: list[NDArray[Any]] = []
        """Noisy sums that were released, each flat."""
        self.payments: list[Payment] = []
        """Of each release, what was charged before it."""
        self.rate = 1.0
        """Sampling probability of the sample drawn last."""
        self.drawn = 0
        """Number of different samples that the script has seen."""

    @abstractmethod
    def draw(self) -> None:
        """Fetch the next sample, as a script's loop does."""

    @abstractmethod
    def step(self) -> None:
        """Step on the sample drawn last, and note the release."""

    @abstractmethod
    def parameters(self) -> NDArray[Any]:
        """Return what is trained, flat."""

    def note(self, release: NDArray[Any]) -> None:
        """Note a release, when it is seen."""
        self.releases.append(release)
        self.payments.append(Payment(len(self.run.asked), self.rate))

    outstanding = 1
    """Draws that may be neither charged nor refused at one time: one for each training."""

    # Of random scripts (`tests/random_scripts.py`).

    def perform(self, action: Callable[[], object]) -> None:
        """Do what a loop does between two draws, where the framework would do it."""
        action()

    def take(self) -> None:
        """Step within `perform`."""
        self.step()

    def quiet(self, release: NDArray[Any]) -> NDArray[Any]:  # noqa: ARG002 - of those that are written
        """Return the numbers of a release that are noise alone, 250 or so."""
        pytest.fail(NOT_WRITTEN)

    def end(self) -> None:  # noqa: B027 - most have nothing to end
        """End the training, if the framework still waits for more."""

    # What goes wrong in scripts. A script whose adapter has no such thing names the case in `NOT_APPLICABLE`. An
    # error would pass for a training that stops.

    def repeat_noise(self) -> None:
        """Bring the state of the noise back to what it was before the last step."""
        pytest.fail(NOT_WRITTEN)

    def checkpoint(self) -> object:
        """Return all that the framework saves."""
        pytest.fail(NOT_WRITTEN)

    def restore(self, state: object) -> None:  # noqa: ARG002 - of those that are written
        """Load what another script, or process, has saved."""
        pytest.fail(NOT_WRITTEN)

    def add_parameters(self) -> None:
        """Let the training move further parameters from now on."""
        pytest.fail(NOT_WRITTEN)

    def repeat_record(self) -> None:
        """Let the next samples have record 0 twice."""
        pytest.fail(NOT_WRITTEN)

    def evaluate(self) -> None:
        """Read the training's own data, as an evaluation within the loop does."""
        pytest.fail(NOT_WRITTEN)


class AdapterContract:
    """What every adapter that trains promises.

    A subclass gives `script`, `seed` and, by the name of a test, why one does not concern its adapter.
    """

    script: ClassVar[Callable[..., Script]]
    """The script under test."""
    seed: ClassVar[Callable[[], object]] = staticmethod(lambda: np.random.seed(7))  # noqa: NPY002 - as scripts do
    """Seeds all that a script can seed in the framework."""
    NOT_APPLICABLE: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _applicable(self, request: pytest.FixtureRequest) -> None:
        reason = self.NOT_APPLICABLE.get(request.node.originalname)
        if reason:
            pytest.skip(reason)

    @pytest.fixture(autouse=True)
    def _ended(self) -> Iterator[None]:
        self.begun: list[Script] = []
        yield
        for script in self.begun:
            script.end()

    def started(self, run: FakeRun, **terms: Any) -> Script:  # noqa: ANN401 - passed on
        type(self).seed()
        script = type(self).script(run, **terms)
        self.begun.append(script)
        return script

    def test_canary_moves_release_by_clipping_norm_at_most(self) -> None:
        script = self.started(FakeRun(), noise_multiplier=LEAST_NOISE)
        for _ in range(3):
            script.draw()
            script.step()
        norms = [np.linalg.norm(release) for release in script.releases]
        assert len(norms) == 3
        assert max(norms) <= script.bound * 1.05
        assert min(norms) >= script.bound * 0.9, "the canary is not there: the script tests nothing"

    def test_skipped_sample_is_charged_or_stops_training(self) -> None:
        run = FakeRun()
        script = self.started(run)
        with suppress(*STOPS):
            for place in range(8):
                script.draw()
                if place % 2:
                    script.step()
        assert len(script.releases) <= len(run.asked)
        assert script.drawn <= len(run.asked) + 1, f"{script.drawn} samples drawn, {len(run.asked)} charged"

    def test_sample_is_released_once_for_its_charge(self) -> None:
        run = FakeRun()
        script = self.started(run)
        script.draw()
        with suppress(*STOPS):
            for _ in range(3):
                script.step()
        assert 1 <= len(script.releases) <= len(run.asked)

    def test_refused_step_changes_nothing(self) -> None:
        script = self.started(FakeRun(capacity=1))
        script.draw()
        script.step()
        before = script.parameters()
        script.draw()
        with pytest.raises(STOPS):
            script.step()
        assert np.array_equal(script.parameters(), before)
        assert len(script.releases) == 1

    def test_noise_that_is_brought_back_is_not_released_again(self) -> None:
        script = self.started(FakeRun(), canary=False)
        with suppress(*STOPS):
            for _ in range(3):
                script.draw()
                script.step()
                script.repeat_noise()
        self._require_fresh_noise(script.releases)

    def test_equal_seeds_give_different_noise(self) -> None:
        releases: list[NDArray[Any]] = []
        for _ in range(2):
            script = self.started(FakeRun(), canary=False)
            for _ in range(2):
                script.draw()
                script.step()
            releases += script.releases
        self._require_fresh_noise(releases)

    def test_restored_state_does_not_repeat_noise(self) -> None:
        first = self.started(FakeRun(), canary=False)
        first.draw()
        first.step()
        state = first.checkpoint()
        first.draw()
        first.step()
        second = self.started(FakeRun(attempt=2), canary=False)
        with suppress(*STOPS):
            second.restore(state)
            second.draw()
            second.step()
        self._require_fresh_noise(first.releases + second.releases)

    def test_added_parameters_are_clipped_or_stop_training(self) -> None:
        script = self.started(FakeRun(), noise_multiplier=LEAST_NOISE)
        script.draw()
        script.step()
        with suppress(*STOPS):
            script.add_parameters()
            for _ in range(2):
                script.draw()
                script.step()
        norms = [np.linalg.norm(release) for release in script.releases]
        assert max(norms) <= script.bound * 1.05

    def test_repeated_record_moves_release_by_one_norm_or_stops_training(self) -> None:
        script = self.started(FakeRun(), noise_multiplier=LEAST_NOISE)
        with suppress(*STOPS):
            script.repeat_record()
            script.draw()
            script.step()
        assert all(np.linalg.norm(release) <= script.bound * 1.05 for release in script.releases)

    def test_evaluation_within_loop_does_not_stop_training(self) -> None:
        run = FakeRun()
        script = self.started(run)
        for _ in range(2):
            script.draw()
            script.evaluate()
            script.step()
            script.evaluate()
        assert len(run.asked) == len(script.releases) == 2

    @staticmethod
    def _require_fresh_noise(releases: list[NDArray[Any]]) -> None:
        """Require that no two releases have the same noise, not even in a part of the parameters."""
        assert releases
        for place, release in enumerate(releases):
            for other in releases[:place]:
                same = np.isclose(release, other, rtol=1e-6, atol=0)
                assert same.mean() < REPEATED_SHARE
