"""Differentially private training of numpy models."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, Generic

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event
from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.arrays import Arrays, Rows, flat, parts_of, rows_of, split
from epsilon_ledger.mechanisms.gaussian import MAX_RELEASES
from epsilon_ledger.mechanisms.mechanism import ClippedSumMechanism
from epsilon_ledger.mechanisms.releases import Authorizer, require_run, require_unrepeatable, sampled
from epsilon_ledger.mechanisms.sampling import Sample_co, Sampler

Floats = NDArray[np.float64]

_STATE: Final = frozenset({"steps", "learning_rate", "noise", "moments"})


class DpOptimizer(ABC, Generic[Sample_co]):
    """Differentially private optimizer steps; `DpSgd`, `DpMomentum` and `DpAdam` are the update rules.

    A step draws a Poisson sample, clips each summand (an example's gradient, or a micro-batch's mean) over all
    parameters together, adds up, authorizes the release, adds noise, divides by the *expected* number of summands, and
    updates the parameters. After a refusal nothing has changed.

    Give the run the number of all steps, as `expected_steps`: a refusal then answers for those that are left.

    A sample is stepped once with all its gradients, and is kept until then, also by `load_state_dict`: discarding
    samples at will would not be Poisson sampling. A fork or checkpoint does not include it; copies and pickles are made
    between steps. One thread uses an optimizer at a time; concurrent calls are refused.

    Args:
        params: a float array, or a list or dictionary of float arrays, updated in place.
        noise: `GaussianNoise` or `AdaptiveClipping`.
        sampler: `PoissonSampler`, or `MicrobatchSampler` if the noise is for micro-batches.
        run: authorizes each step; or `Unmetered("why")`, which charges nothing.
        learning_rate: in (0, 1e6]; may be changed.

    Raises:
        ValueError: an argument is out of its bounds, or the arguments do not fit together.

    Source:
        Abadi et al. 2016 (arXiv 1607.00133), Algorithm 1.
    """

    def __init__(
        self,
        params: Arrays,
        *,
        noise: ClippedSumMechanism,
        sampler: Sampler[Sample_co],
        run: Authorizer,
        learning_rate: float,
    ) -> None:
        self._params = params
        for part in parts_of(params):
            if part.dtype.kind != "f" or not part.flags.writeable:
                raise ValueError(
                    f"A parameter is read-only or of type {part.dtype}, but it must be a float to be moved."
                )
        if noise.clipped != sampler.clipped:
            raise ValueError(
                f"The noise is for sums over each {noise.clipped}, but the sampler draws each {sampler.clipped}: "
                'a MicrobatchSampler goes with noise made with clipped="microbatch", a PoissonSampler without.'
            )
        if noise.expected_summands not in (None, sampler.expected_summands):
            raise ValueError(
                f"The adaptive clipping divides its count by {noise.expected_summands}, but the sampler expects "
                f"{sampler.expected_summands} summands: make it with expected_summands=sampler.expected_summands."
            )
        self._noise = noise
        self._sampler = sampler
        self._run = require_run(run)
        self.learning_rate = learning_rate
        self._steps = 0
        self._pending: tuple[int, Sample_co] | None = None
        self._guard = os.getpid(), Lock()

    @property
    def params(self) -> Arrays:
        """The parameters."""
        return self._params

    @property
    def learning_rate(self) -> float:
        """Factor of a step."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = checks.real("learning_rate", value, checks.ABOVE_ZERO, 1e6, "how far a step goes")

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._steps

    @property
    def event(self) -> Event:
        """Event of the next step on all records; create the run with it."""
        return sampled(self._noise.event, self._sampler.sampling_probability)

    def sample(self) -> Sample_co:
        """Return the sample of the next step, which stays the same until the step.

        Returns:
            The indices of the examples, or of each micro-batch's examples. An empty sample is stepped like any other,
            with no gradients.

        Raises:
            RuntimeError: another thread is in a call.
            ValueError: the sampler is seeded, and the run has an earlier attempt.
        """
        with self._alone():
            if not self._has_sample:
                require_unrepeatable(self._run, secure=self._sampler.secure)
                self._pending = (os.getpid(), self._sampler.sample())
            assert self._pending is not None
            return self._pending[1]

    def step(self, gradients: Rows | None) -> None:
        """Authorize and take one step.

        Args:
            gradients: of the members of `sample()`, in order: shaped as the parameters, each array with a first axis
                for the members. For micro-batches: their mean gradients. For an empty sample: anything empty, or None.
                A gradient with a non-finite norm counts as zero.

        Raises:
            RuntimeError: there is no unused sample: call `sample()` first; or another thread is in a call.
            ValueError: the shapes do not fit, a parameter is not finite, or the noise multiplier has decayed below
                1e-3.
            Exception: from the run; nothing was released and nothing has changed, and the call may be repeated.
        """
        with self._alone():
            self._step(gradients)

    def _step(self, gradients: Rows | None) -> None:
        if not self._has_sample:
            raise RuntimeError("There is no sample to step: call sample(), and step its gradients once.")
        assert self._pending is not None
        parts = parts_of(self._params)
        params = flat(parts)
        if not np.isfinite(params).all():
            raise ValueError("A parameter is NaN or infinite: the training has diverged. Nothing was released.")
        release = self._noise.prepare(rows_of(gradients, self._params, len(self._pending[1])))
        release.authorize(self._run, self._sampler.sampling_probability)
        # Admitted: the sample is charged and not used again, even after an error.
        self._pending = None
        gradient = release.draw()
        gradient /= self._sampler.expected_summands
        direction, moments = self._direction(gradient)
        params -= self._learning_rate * direction
        moved = [
            new.astype(part.dtype) for new, part in zip(split(params, [p.shape for p in parts]), parts, strict=True)
        ]
        for part, new in zip(parts, moved, strict=True):
            part[...] = new
        self._set_moments(moments)
        self._steps += 1

    def state_dict(self) -> dict[str, object]:
        """Return the state for a checkpoint besides the parameters; no random state and no sample."""
        return {
            "steps": self._steps,
            "learning_rate": self._learning_rate,
            "noise": self._noise.state_dict(),
            "moments": [moment.copy() for moment in self._moments()],
        }

    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint; the caller restores the parameters.

        Charges are final: a repeated step is charged again. A sample that was drawn and not stepped stays the next one.

        Args:
            state: from `state_dict` of an optimizer with the same arguments.

        Raises:
            ValueError: it is invalid; nothing has changed.
        """
        found = checks.state(state, _STATE, type(self).__name__)
        steps = checks.whole("steps", found["steps"], 0, MAX_RELEASES, "how many steps were taken")
        rate = checks.real("learning_rate", found["learning_rate"], checks.ABOVE_ZERO, 1e6, "how far a step goes")
        stored, own = found["moments"], self._moments()
        if not isinstance(stored, Sequence) or len(stored) != len(own):
            raise ValueError(f"A state of {type(self).__name__} has {len(own)} moments, but this one has not.")
        size = sum(part.size for part in parts_of(self._params))
        moments = [checks.vector("moments", moment, size) for moment in stored]
        self._noise.load_state_dict(found["noise"])
        self._set_moments(moments)
        self._steps, self._learning_rate = steps, rate

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle.

        Raises:
            RuntimeError: a sample was drawn and not stepped: with it the copy would step it again, and without it a
                script could discard the sample.
        """
        if self._has_sample:
            raise RuntimeError("A sample was drawn and not stepped: step it, and copy or pickle the optimizer then.")
        return {name: value for name, value in self.__dict__.items() if name != "_guard"} | {"_pending": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state with a new lock."""
        self.__dict__.update(state)
        self._guard = os.getpid(), Lock()

    @property
    def _has_sample(self) -> bool:
        """Whether this process has drawn a sample that it has not stepped."""
        return self._pending is not None and self._pending[0] == os.getpid()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Serialize access to the sample."""
        if self._guard[0] != os.getpid():  # another thread may have held the lock at the fork
            self._guard = os.getpid(), Lock()
        _, lock = self._guard
        if not lock.acquire(blocking=False):
            raise RuntimeError(
                "Another call of this optimizer is under way, of another thread or from within: a sample is stepped "
                "once. Give each thread an optimizer of its own."
            )
        try:
            yield
        finally:
            lock.release()

    @abstractmethod
    def _direction(self, gradient: Floats) -> tuple[Floats, list[Floats]]:
        """Return the direction of a step, (d,), and the moments after it; change nothing but `gradient`."""

    def _moments(self) -> list[Floats]:
        """Return the running averages, each (d,)."""
        return []

    def _set_moments(self, moments: list[Floats]) -> None:
        """Set the running averages."""
