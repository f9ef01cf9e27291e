"""MindArmour's noise mechanisms and their factory."""

from typing import Any, Literal, TypeVar

from epsilon_ledger._mindarmour.dangers import check_seed, warn_of_norms
from epsilon_ledger._wire.coercion import noise, real
from epsilon_ledger._wire.noise_decay import DecayMode
from epsilon_ledger.mechanisms import Authorizer, GaussianNoise
from epsilon_ledger.mechanisms.arrays import Array, parts_of, shaped_like
from epsilon_ledger.mechanisms.mechanism import Clipped

DECAY_MODES: dict[str, DecayMode] = {"Time": "time", "Step": "step", "Exp": "exp"}
"""MindArmour's names of decay modes, and the ledger's."""

MIN_NORM, MAX_NORM = 1e-9, 1e9

A = TypeVar("A", Array, list[Array], dict[str, Array])


class NoiseGaussianRandom:
    """Gaussian noise with standard deviation norm_bound times initial_noise_multiplier.

    Give it to `DPModel`, which charges each step; or call it with the sum of gradients that were clipped to norm_bound
    over all parameters together: the call charges one release, and returns the noise to add.

    Args:
        norm_bound: L2 norm to which gradients are clipped, in [1e-9, 1e9].
        initial_noise_multiplier: standard deviation over norm_bound, in [1e-3, 1e6].
        seed: 0 for secure random numbers; any other makes the noise predictable.
        decay_policy: None, as the noise is constant.
        run: to charge by calls; `DPModel` has a run of its own.

    Raises:
        TypeError: a number is not a number.
        ValueError: an argument is out of its bounds.
    """

    decay_mode: DecayMode | None = None
    decay_rate: float | None = None

    def __init__(
        self,
        norm_bound: float = 1.0,
        initial_noise_multiplier: float = 1.0,
        seed: int = 0,
        decay_policy: None = None,
        *,
        run: Authorizer | None = None,
    ) -> None:
        if decay_policy is not None:
            raise ValueError(
                f"decay_policy must be None, not {decay_policy!r}: this noise is constant. Noise that decays is "
                "'AdaGaussian', NoiseAdaGaussianRandom."
            )
        self._set(norm_bound, initial_noise_multiplier, seed, run)

    def __call__(self, gradients: A, *, sampling_probability: float | None = None) -> A:
        """As `construct`."""
        return self.construct(gradients, sampling_probability=sampling_probability)

    def construct(self, gradients: A, *, sampling_probability: float | None = None) -> A:
        """Authorize one release, and return its noise.

        Rounding the sum of gradients and noise again is what `GaussianNoise.release` avoids, which `DPModel` takes.

        Args:
            gradients: the sum of clipped gradients: an array, or a list or dictionary of arrays whose norm was taken
                together.
            sampling_probability: of the Poisson sample of the summands; None for all records.

        Returns:
            The noise, shaped as the gradients.

        Raises:
            ValueError: there is no run to charge, or the sum is not finite.
            Exception: from the run; nothing was drawn.
        """
        if self._run is None:
            raise ValueError("There is no run to charge this noise to: give run= to the mechanism, or it to a DPModel.")
        noisy: Any = self._noise.release(gradients, run=self._run, sampling_probability=sampling_probability)
        parts = [new - old for new, old in zip(parts_of(noisy), parts_of(gradients), strict=True)]
        found: Any = shaped_like(gradients, parts)
        return found  # type: ignore[no-any-return] # shaped as `gradients`

    @property
    def norm_bound(self) -> float:
        """L2 norm for which the noise is made."""
        return self._norm_bound

    @property
    def initial_noise_multiplier(self) -> float:
        """Standard deviation of the first release over norm_bound."""
        return self._multiplier

    def mechanism(self, clipping_norm: float, clipped: Clipped) -> GaussianNoise:
        """Make the mechanism of a training.

        Args:
            clipping_norm: L2 norm to which the training clips gradients; a warning tells if it is not norm_bound.
            clipped: the kind of summands.

        Returns:
            Noise with this standard deviation on gradients of that norm.

        Raises:
            ValueError: the noise multiplier is out of its bounds.
        """
        warn_of_norms(self._norm_bound, clipping_norm, self._multiplier)
        return GaussianNoise(
            self._multiplier * (self._norm_bound / clipping_norm),
            clipping_norm=clipping_norm,
            decay_mode=self.decay_mode,
            decay_rate=self.decay_rate,
            clipped=clipped,
            insecure_seed=self._seed,
        )

    def _set(self, norm_bound: float, multiplier: float, seed: int, run: Authorizer | None) -> None:
        self._norm_bound = real("norm_bound", norm_bound, MIN_NORM, MAX_NORM)
        self._multiplier = noise(multiplier, "initial_noise_multiplier")
        self._seed = check_seed(seed)
        self._run = run
        self._noise = self.mechanism(self._norm_bound, "example")


class NoiseAdaGaussianRandom(NoiseGaussianRandom):
    """Gaussian noise that decays from release to release.

    Args:
        norm_bound: as for `NoiseGaussianRandom`, like the next two arguments.
        initial_noise_multiplier: of the first release.
        seed: of the noise.
        noise_decay_rate: k, in (0, 1).
        decay_policy: z / (1 + k t) for 'Time', z (1 - k)^t for 'Step', z exp(-k t) for 'Exp'.
        run: as for `NoiseGaussianRandom`.

    Raises:
        NameError: the policy is none of these.
        TypeError: a number is not a number.
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        norm_bound: float = 1.0,
        initial_noise_multiplier: float = 1.0,
        seed: int = 0,
        noise_decay_rate: float = 6e-6,
        decay_policy: Literal["Time", "Step", "Exp"] = "Exp",
        *,
        run: Authorizer | None = None,
    ) -> None:
        if decay_policy not in DECAY_MODES:
            raise NameError(f"decay_policy must be 'Time', 'Step' or 'Exp', not {decay_policy!r}.")
        self.decay_mode = DECAY_MODES[decay_policy]
        self.decay_rate = real("noise_decay_rate", noise_decay_rate, 0.0, 1.0, above=True, below=True)
        self._set(norm_bound, initial_noise_multiplier, seed, run)


class NoiseMechanismsFactory:
    """Factory of noise mechanisms."""

    @staticmethod
    def create(
        mech_name: str,
        norm_bound: float = 1.0,
        initial_noise_multiplier: float = 1.0,
        seed: int = 0,
        noise_decay_rate: float = 6e-6,
        decay_policy: Literal["Time", "Step", "Exp"] | None = None,
        *,
        run: Authorizer | None = None,
    ) -> NoiseGaussianRandom:
        """Create a noise mechanism.

        Args:
            mech_name: 'Gaussian' for constant noise, 'AdaGaussian' for noise that decays.
            norm_bound: as for the mechanism, like the other arguments.
            initial_noise_multiplier: of the first release.
            seed: of the noise.
            noise_decay_rate: of 'AdaGaussian'.
            decay_policy: required by 'AdaGaussian', None for 'Gaussian'.
            run: to charge by calls.

        Returns:
            The mechanism.

        Raises:
            NameError: there is no such mechanism, or no such policy.
            TypeError: a number is not a number.
            ValueError: an argument is out of its bounds, or constant noise has a policy.
        """
        if mech_name == "Gaussian":
            return NoiseGaussianRandom(norm_bound, initial_noise_multiplier, seed, decay_policy, run=run)  # type: ignore[arg-type] # refused there
        if mech_name == "AdaGaussian":
            return NoiseAdaGaussianRandom(
                norm_bound,
                initial_noise_multiplier,
                seed,
                noise_decay_rate,
                decay_policy,  # type: ignore[arg-type] # as above
                run=run,
            )
        raise NameError(f"mech_name must be 'Gaussian' or 'AdaGaussian', not {mech_name!r}.")
