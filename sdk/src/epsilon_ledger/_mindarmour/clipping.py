"""MindArmour's adaptive clipping and its factory."""

from math import exp
from typing import Literal

import numpy as np

from epsilon_ledger import gaussian
from epsilon_ledger._mindarmour.dangers import check_seed
from epsilon_ledger._mindarmour.noise import MAX_NORM, MIN_NORM
from epsilon_ledger._wire.coercion import real, whole
from epsilon_ledger.mechanisms import AdaptiveClipping, Authorizer, GaussianNoise
from epsilon_ledger.mechanisms.adaptive import UpdateMode
from epsilon_ledger.mechanisms.lattice import Lattice
from epsilon_ledger.mechanisms.randomness import randomness
from epsilon_ledger.mechanisms.releases import require_run, sampled

UPDATE_MODES: dict[str, UpdateMode] = {"Linear": "linear", "Geometric": "geometric"}
"""MindArmour's names of the changes of the norm, and the ledger's."""


class AdaClippingWithGaussianRandom:
    """Clipping norm that follows a quantile of the gradients' norms, by a noisy fraction that is charged.

    Give it to `DPModel`, which charges sum and count together and lets the noise follow the norm. Or call it with a
    fraction: the call charges the count alone.

    Args:
        decay_policy: 'Linear' for C - lr (b - gamma), 'Geometric' for C exp(-lr (b - gamma)), with fraction b.
        learning_rate: lr, in (0, 1e3].
        target_unclipped_quantile: gamma, in [0, 1].
        fraction_stddev: standard deviation of the fraction's noise, in (0, 1e6].
        seed: 0 for secure random numbers; any other makes the noise predictable. In a `DPModel`, the noise of the count
            is from the source of the sum's noise.
        run: to charge by calls.
        summands: number of gradients in a call's fraction: the micro-batches of a batch.

    Raises:
        TypeError: a number is not a number.
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        decay_policy: Literal["Linear", "Geometric"] = "Linear",
        learning_rate: float = 0.001,
        target_unclipped_quantile: float = 0.9,
        fraction_stddev: float = 0.01,
        seed: int = 0,
        *,
        run: Authorizer | None = None,
        summands: int | None = None,
    ) -> None:
        if decay_policy not in UPDATE_MODES:
            raise ValueError(f"decay_policy must be 'Linear' or 'Geometric', not {decay_policy!r}.")
        self._mode = UPDATE_MODES[decay_policy]
        self._rate = real("learning_rate", learning_rate, 0.0, 1e3, above=True)
        self._target = real("target_unclipped_quantile", target_unclipped_quantile, 0.0, 1.0)
        self._stddev = real("fraction_stddev", fraction_stddev, 0.0, 1e6, above=True)
        self._randomness = randomness(check_seed(seed))
        self._run = run
        self._summands = None if summands is None else whole("summands", summands)

    def __call__(
        self, empirical_fraction: float, norm_bound: float, *, sampling_probability: float | None = None
    ) -> float:
        """As `construct`."""
        return self.construct(empirical_fraction, norm_bound, sampling_probability=sampling_probability)

    def construct(
        self, empirical_fraction: float, norm_bound: float, *, sampling_probability: float | None = None
    ) -> float:
        """Authorize the release of a fraction, and return the next clipping norm.

        Args:
            empirical_fraction: of the gradients, those whose norm is at most norm_bound: their number over `summands`.
            norm_bound: C, in [1e-9, 1e9].
            sampling_probability: of the Poisson sample of the gradients; None for all records.

        Returns:
            The norm, in [1e-9, 1e9].

        Raises:
            ValueError: there is no run or no `summands`, or an argument is out of its bounds.
            Exception: from the run; nothing was drawn.
        """
        if self._run is None or self._summands is None:
            raise ValueError("Whose count is it? Give run= and summands= to the mechanism, or it to a DPModel.")
        fraction = real("empirical_fraction", empirical_fraction, 0.0, 1.0)
        norm = real("norm_bound", norm_bound, MIN_NORM, MAX_NORM)
        # One record moves the count of gradients within the norm by 1.
        stddev = self._stddev * self._summands
        lattice = Lattice.for_scales(1.0, stddev)
        count = lattice.multiples(np.array([fraction * self._summands]))
        require_run(self._run).authorize(event=sampled(gaussian(stddev), sampling_probability))
        noisy = lattice.add(count, self._randomness.normals(1), stddev)
        shift = self._rate * (float(noisy[0]) / self._summands - self._target)
        moved = norm - shift if self._mode == "linear" else norm * exp(max(-700.0, min(700.0, -shift)))
        return max(MIN_NORM, min(MAX_NORM, moved))

    @property
    def fraction_stddev(self) -> float:
        """Standard deviation of the fraction's noise."""
        return self._stddev

    def mechanism(self, noise: GaussianNoise, expected_summands: float) -> AdaptiveClipping:
        """Make the mechanism of a training.

        Args:
            noise: of the sum, with the first clipping norm.
            expected_summands: divisor of the count.

        Returns:
            Noise on sum and count.

        Raises:
            ValueError: the noise of the count is out of its bounds.
        """
        return AdaptiveClipping(
            noise,
            expected_summands=expected_summands,
            learning_rate=self._rate,
            target_unclipped_quantile=self._target,
            fraction_stddev=self._stddev,
            mode=self._mode,
            clipping_norm_bounds=(MIN_NORM, MAX_NORM),
        )


class ClipMechanismsFactory:
    """Factory of adaptive clipping."""

    @staticmethod
    def create(  # noqa: PLR0913 - MindArmour's and two more
        mech_name: str,
        decay_policy: Literal["Linear", "Geometric"] = "Linear",
        learning_rate: float = 0.001,
        target_unclipped_quantile: float = 0.9,
        fraction_stddev: float = 0.01,
        seed: int = 0,
        *,
        run: Authorizer | None = None,
        summands: int | None = None,
    ) -> AdaClippingWithGaussianRandom:
        """Create adaptive clipping.

        Args:
            mech_name: 'Gaussian'.
            decay_policy: as for `AdaClippingWithGaussianRandom`, like the other arguments.
            learning_rate: of the norm.
            target_unclipped_quantile: of the gradients' norms.
            fraction_stddev: of the fraction's noise.
            seed: of the noise.
            run: to charge by calls.
            summands: of a call's fraction.

        Returns:
            The mechanism.

        Raises:
            NameError: there is no such mechanism.
            TypeError: a number is not a number.
            ValueError: an argument is out of its bounds.
        """
        if mech_name != "Gaussian":
            raise NameError(f"mech_name must be 'Gaussian', not {mech_name!r}.")
        return AdaClippingWithGaussianRandom(
            decay_policy,
            learning_rate,
            target_unclipped_quantile,
            fraction_stddev,
            seed,
            run=run,
            summands=summands,
        )
