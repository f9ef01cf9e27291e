"""Adaptive clipping: the norm follows a quantile, by a noisy count that is charged."""

from collections.abc import Sequence
from math import exp, hypot
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event, adaptive_clipping, composed, gaussian
from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.clipping import ClippedSum
from epsilon_ledger.mechanisms.gaussian import GaussianNoise
from epsilon_ledger.mechanisms.lattice import Lattice
from epsilon_ledger.mechanisms.mechanism import Clipped, ClippedSumMechanism
from epsilon_ledger.mechanisms.releases import PreparedRelease

UpdateMode = Literal["geometric", "linear"]

_LARGEST_EXPONENT: Final = 700.0
_STATE: Final = frozenset({"noise"})


class AdaptiveClipping(ClippedSumMechanism):
    """Gaussian noise on a clipped sum, whose clipping norm C adapts.

    Each release gives the noisy sum and a noisy fraction b of the summands within C. Then C becomes C - lr (b - gamma)
    in mode `linear`, or C exp(-lr (b - gamma)) in mode `geometric`, with learning rate lr and target quantile gamma,
    within bounds. The noise of the sum follows C.

    The count is the sum of b_i - 1/2, where b_i is 1 if summand i has a norm of at most C and else 0: one example moves
    it by 1/2. Its Gaussian noise has standard deviation s, and b = 1/2 + noisy count / expected number of summands,
    because the actual number is private.

    With means of micro-batches, one record can turn -1/2 into 1/2: the count moves by 1, as the sum moves by 2 C. The
    event is then two Gaussian releases of micro-batches, the count's with noise multiplier 2 s.

    Args:
        noise: of the sum, with the first clipping norm. This mechanism takes it over, and draws the count's noise from
            the same source.
        expected_summands: divisor of the count: q n for a Poisson sample, `sampler.expected_summands`.
        learning_rate: lr, in (0, 1e3].
        target_unclipped_quantile: gamma, in [0, 1].
        fraction_stddev: standard deviation of b's noise; times `expected_summands` it is s, in [1e-3, 5e5].
        mode: of the changes of C.
        clipping_norm_bounds: minimum and maximum of C, in [1e-9, 1e9].

    Raises:
        ValueError: an argument is out of its bounds.

    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (arXiv 1905.03871), Algorithm 1 and Theorem 1; the names are
        MindArmour's.
    """

    def __init__(
        self,
        noise: GaussianNoise,
        *,
        expected_summands: float,
        learning_rate: float = 0.2,
        target_unclipped_quantile: float = 0.5,
        fraction_stddev: float = 0.05,
        mode: UpdateMode = "geometric",
        clipping_norm_bounds: tuple[float, float] = (1e-6, 1e6),
    ) -> None:
        if mode not in get_args(UpdateMode):
            raise ValueError(f'mode is {mode!r}, but it must be "geometric" or "linear".')
        self._noise = noise
        self._expected = checks.real(
            "expected_summands", expected_summands, checks.ABOVE_ZERO, 1e12, "the mean size of the sample"
        )
        meaning = "the standard deviation of the fraction's noise"
        fraction = checks.real("fraction_stddev", fraction_stddev, checks.ABOVE_ZERO, 1e6, meaning)
        least, most = checks.MIN_NOISE_MULTIPLIER, checks.MAX_NOISE_MULTIPLIER / 2
        meaning = "the standard deviation of the noise of the count"
        stddev = fraction * self._expected
        self._stddev = checks.real("fraction_stddev times expected_summands", stddev, least, most, meaning)
        self._learning_rate = checks.real(
            "learning_rate", learning_rate, checks.ABOVE_ZERO, 1e3, "how fast the clipping norm moves"
        )
        meaning = "the fraction of summands that are to be within the clipping norm"
        self._target = checks.real("target_unclipped_quantile", target_unclipped_quantile, 0.0, 1.0, meaning)
        self._mode = mode
        low, high = clipping_norm_bounds
        self._min = checks.clipping_norm("the first of clipping_norm_bounds", low)
        self._max = checks.clipping_norm("the second of clipping_norm_bounds", high)
        checks.real("clipping_norm of the noise", noise.clipping_norm, self._min, self._max, "where C starts")

    @property
    def noise(self) -> GaussianNoise:
        """The noise of the sum."""
        return self._noise

    @property
    def noise_multiplier(self) -> float:
        """Of the next release's sum and count together: (z^-2 + (2 s)^-2)^(-1/2)."""
        return 1 / hypot(1 / self._noise.noise_multiplier, 1 / (2 * self._stddev))

    @property
    def clipping_norm(self) -> float:
        """C of the next release."""
        return self._noise.clipping_norm

    @property
    def clipped(self) -> Clipped:
        """The kind of summands: examples' vectors, or means of micro-batches."""
        return self._noise.clipped

    @property
    def expected_summands(self) -> float:
        """Divisor of the count."""
        return self._expected

    @property
    def count_noise_stddev(self) -> float:
        """Standard deviation of the count's noise."""
        return self._stddev

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self._noise.releases

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable; False if it is seeded."""
        return self._noise.secure

    @property
    def event(self) -> Event:
        """Event of the next release on the summed records: sum and count together."""
        return self.event_at(self.releases)

    def event_at(self, release: int) -> Event:
        """As in `ClippedSumMechanism`."""
        z = self._noise.noise_multiplier_at(release)
        if self.clipped == "example":
            return adaptive_clipping(gradient_noise_multiplier=z, count_noise_stddev=self._stddev)
        return composed([gaussian(z, clipped="microbatch"), gaussian(2 * self._stddev, clipped="microbatch")])

    def prepare(self, rows: Sequence[NDArray[Any]]) -> PreparedRelease:
        """Clip vectors to the current norm, and prepare the release of sum and count.

        Args:
            rows: one array (n, d_j) for each parameter; row i of all of them is one summand.

        Returns:
            The release; its result is the noisy sum, (sum of the d_j,), and it moves the clipping norm.

        Raises:
            ValueError: the noise multiplier has decayed below 1e-3, or there are too many summands.
        """
        clipping_norm, event = self._noise.clipping_norm, self.event
        release, total = self._noise.prepare_sum(rows)

        def move() -> None:
            self._noise.clipping_norm = self._next_clipping_norm(clipping_norm, self._fraction(total))

        return release.joined(event, move)

    def state_dict(self) -> dict[str, object]:
        """Return the noise's state with the clipping norm for a checkpoint; no random state."""
        return {"noise": self._noise.state_dict()}

    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint.

        Args:
            state: from `state_dict` of a mechanism with the same arguments.

        Raises:
            ValueError: it is invalid; nothing has changed.
        """
        self._noise.load_state_dict(checks.state(state, _STATE, "AdaptiveClipping")["noise"])

    def _fraction(self, total: ClippedSum) -> float:
        """Compute the noisy fraction of summands within the norm; halves are on the lattice, so nothing is rounded."""
        shifted = np.array([total.within - total.count / 2])
        lattice = Lattice.for_scales(1.0, self._stddev)
        noisy = lattice.add(lattice.multiples(shifted), self._noise.randomness.normals(1), self._stddev)
        return 0.5 + float(noisy[0]) / self._expected

    def _next_clipping_norm(self, clipping_norm: float, fraction: float) -> float:
        shift = self._learning_rate * (fraction - self._target)
        if self._mode == "linear":
            moved = clipping_norm - shift
        else:
            moved = clipping_norm * exp(max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, -shift)))
        return max(self._min, min(self._max, moved))
