"""Update rules on noisy mean gradients."""

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.arrays import Arrays, parts_of
from epsilon_ledger.mechanisms.mechanism import ClippedSumMechanism
from epsilon_ledger.mechanisms.releases import Authorizer
from epsilon_ledger.mechanisms.sampling import Sample_co, Sampler
from epsilon_ledger.mechanisms.training import DpOptimizer

Floats = NDArray[np.float64]


class DpSgd(DpOptimizer[Sample_co]):
    """DP-SGD on the noisy mean gradient. See `DpOptimizer`."""

    def _direction(self, gradient: Floats) -> tuple[Floats, list[Floats]]:
        return gradient, []


class DpMomentum(DpOptimizer[Sample_co]):
    """DP-SGD with momentum: the velocity is `momentum` times its last value plus the noisy mean gradient.

    Args:
        params: as for `DpOptimizer`, like the next three arguments.
        noise: the mechanism.
        sampler: the sampler.
        run: the run.
        learning_rate: factor of a step.
        momentum: in [0, 1).

    Raises:
        ValueError: an argument is out of its bounds, or the arguments do not fit together.
    """

    def __init__(
        self,
        params: Arrays,
        *,
        noise: ClippedSumMechanism,
        sampler: Sampler[Sample_co],
        run: Authorizer,
        learning_rate: float,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(params, noise=noise, sampler=sampler, run=run, learning_rate=learning_rate)
        self._momentum = checks.real("momentum", momentum, 0.0, checks.BELOW_ONE, "what is kept of the velocity")
        self._velocity = np.zeros(sum(part.size for part in parts_of(params)))

    def _direction(self, gradient: Floats) -> tuple[Floats, list[Floats]]:
        velocity = self._momentum * self._velocity + gradient
        return velocity, [velocity]

    def _moments(self) -> list[Floats]:
        return [self._velocity]

    def _set_moments(self, moments: list[Floats]) -> None:
        (self._velocity,) = moments


class DpAdam(DpOptimizer[Sample_co]):
    """Adam on the noisy mean gradient.

    The second moments contain the noise's variance; it is not subtracted.

    Args:
        params: as for `DpOptimizer`, like the next three arguments.
        noise: the mechanism.
        sampler: the sampler.
        run: the run.
        learning_rate: factor of a step.
        betas: decay rates of the first and second moments, each in [0, 1).
        stability: added to the square root of the second moments, in (0, 1]; usually called epsilon.

    Raises:
        ValueError: an argument is out of its bounds, or the arguments do not fit together.

    Source:
        Kingma, Ba 2015 (arXiv 1412.6980), Algorithm 1.
    """

    def __init__(
        self,
        params: Arrays,
        *,
        noise: ClippedSumMechanism,
        sampler: Sampler[Sample_co],
        run: Authorizer,
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        stability: float = 1e-8,
    ) -> None:
        super().__init__(params, noise=noise, sampler=sampler, run=run, learning_rate=learning_rate)
        first, second = betas
        meaning = "what is kept of the moments"
        self._betas = (
            checks.real("the first of betas", first, 0.0, checks.BELOW_ONE, meaning),
            checks.real("the second of betas", second, 0.0, checks.BELOW_ONE, meaning),
        )
        self._stability = checks.real("stability", stability, checks.ABOVE_ZERO, 1.0, "what keeps from dividing by 0")
        size = sum(part.size for part in parts_of(params))
        self._first, self._second = np.zeros(size), np.zeros(size)

    def _direction(self, gradient: Floats) -> tuple[Floats, list[Floats]]:
        one, two = self._betas
        step = self.steps + 1
        first = one * self._first + (1 - one) * gradient
        second = two * self._second + (1 - two) * gradient**2
        direction = first / (1 - one**step) / (np.sqrt(second / (1 - two**step)) + self._stability)
        return direction, [first, second]

    def _moments(self) -> list[Floats]:
        return [self._first, self._second]

    def _set_moments(self, moments: list[Floats]) -> None:
        self._first, self._second = moments
