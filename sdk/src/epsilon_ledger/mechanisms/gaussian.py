"""Gaussian noise on a sum of clipped vectors, constant or decaying."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args, overload

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event, gaussian
from epsilon_ledger._wire.noise_decay import DecayMode, decayed
from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.arrays import Array, Arrays, flat, parts_of, shaped_like, split
from epsilon_ledger.mechanisms.clipping import ClippedSum, clipped_sum, rounded_norm
from epsilon_ledger.mechanisms.lattice import Lattice
from epsilon_ledger.mechanisms.mechanism import Clipped, ClippedSumMechanism
from epsilon_ledger.mechanisms.randomness import Randomness, randomness
from epsilon_ledger.mechanisms.releases import Authorizer, PreparedRelease, require_run

Floats = NDArray[np.float64]

MAX_RELEASES: Final = 10**9
"""The service's largest step number."""

_MAX_RATES: Final = {"time": 1e6, "step": checks.BELOW_ONE, "exp": 1e6}
_STATE: Final = frozenset({"releases", "clipping_norm"})


class GaussianNoise(ClippedSumMechanism):
    """Gaussian noise with standard deviation noise multiplier times clipping norm.

    Release t = 0, 1, 2, ... has the noise multiplier z without decay, and with decay rate k in mode `time`
    z / (1 + k t), `step` z (1 - k)^t, `exp` z exp(-k t).

    The random numbers are secure unless seeded: see `randomness`. Sum and noise are added on a lattice without rounding
    (see `lattice`), which enlarges the noise on d coordinates by at most sqrt(d) max(1, z) 2^-28 of itself.

    Args:
        noise_multiplier: z of release 0, standard deviation over clipping norm, in [1e-3, 1e6].
        clipping_norm: C, the L2 norm to which each summand is clipped, in [1e-9, 1e9]; may be changed.
        decay_mode: of the noise; None for constant noise.
        decay_rate: k, required with a mode: from 0, below 1 in mode `step`, up to 1e6 in the others.
        clipped: kind of summands: each `example`'s vector, or the mean of each `microbatch`. Both have noise z C, but
            one record can move a clipped mean by 2 C, so that its event costs as much as half the noise.
        insecure_seed: for tests: an integer or a numpy Generator. It allows to remove the noise.

    Raises:
        ValueError: an argument is out of its bounds.

    Source:
        Dwork et al. 2006 (EUROCRYPT), "Our Data, Ourselves", for Gaussian noise; the modes are MindArmour's.
    """

    def __init__(
        self,
        noise_multiplier: float,
        *,
        clipping_norm: float,
        decay_mode: DecayMode | None = None,
        decay_rate: float | None = None,
        clipped: Clipped = "example",
        insecure_seed: int | np.random.Generator | None = None,
    ) -> None:
        self._initial = checks.noise_multiplier("noise_multiplier", noise_multiplier)
        self._clipping_norm = checks.clipping_norm("clipping_norm", clipping_norm)
        if (decay_mode is None) != (decay_rate is None):
            raise ValueError("Give both decay_mode and decay_rate, or neither.")
        if decay_mode is not None and decay_mode not in get_args(DecayMode):
            raise ValueError(f'decay_mode is {decay_mode!r}, but it must be "time", "step" or "exp".')
        if clipped not in get_args(Clipped):
            raise ValueError(f'clipped is {clipped!r}, but it must be "example" or "microbatch".')
        self._mode = decay_mode
        self._rate = (
            0.0
            if decay_mode is None
            else checks.real("decay_rate", decay_rate, 0.0, _MAX_RATES[decay_mode], "how fast the noise shrinks")
        )
        self._clipped: Clipped = clipped
        self._randomness = randomness(insecure_seed)
        self._releases = 0

    @property
    def noise_multiplier(self) -> float:
        """Of the next release.

        Raises:
            ValueError: it has decayed below 1e-3.
        """
        return self.noise_multiplier_at(self._releases)

    def noise_multiplier_at(self, release: int) -> float:
        """Compute the noise multiplier of a release.

        Args:
            release: its number, from 0.

        Returns:
            The noise multiplier.

        Raises:
            ValueError: it has decayed below 1e-3.
        """
        z = decayed(self._mode, self._initial, self._rate, release)
        if z < checks.MIN_NOISE_MULTIPLIER:
            raise ValueError(f"At release {release} the noise multiplier has shrunk to {z:g}, below 0.001: stop here.")
        return z

    @property
    def clipping_norm(self) -> float:
        """C of the next release."""
        return self._clipping_norm

    @clipping_norm.setter
    def clipping_norm(self, value: float) -> None:
        self._clipping_norm = checks.clipping_norm("clipping_norm", value)

    @property
    def standard_deviation(self) -> float:
        """Of the next release's noise, in each coordinate."""
        return self.noise_multiplier * self._clipping_norm

    @property
    def clipped(self) -> Clipped:
        """The kind of summands: examples' vectors, or means of micro-batches."""
        return self._clipped

    @property
    def releases(self) -> int:
        """Number of releases: t of the next one."""
        return self._releases

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable; False if it is seeded."""
        return self._randomness.secure

    @property
    def randomness(self) -> Randomness:
        """Source of the noise."""
        return self._randomness

    @property
    def event(self) -> Event:
        """Event of the next release on the summed records."""
        return self.event_at(self._releases)

    def event_at(self, release: int) -> Event:
        """As in `ClippedSumMechanism`."""
        return gaussian(self.noise_multiplier_at(release), clipped=self._clipped)

    @overload
    def release(self, total: Array, *, run: Authorizer, sampling_probability: float | None = None) -> Floats: ...
    @overload
    def release(
        self, total: Sequence[Array], *, run: Authorizer, sampling_probability: float | None = None
    ) -> list[Floats]: ...
    @overload
    def release(
        self, total: Mapping[str, Array], *, run: Authorizer, sampling_probability: float | None = None
    ) -> dict[str, Floats]: ...
    def release(
        self, total: Arrays, *, run: Authorizer, sampling_probability: float | None = None
    ) -> Floats | list[Floats] | dict[str, Floats]:
        """Authorize one release, and add its noise to a sum of vectors clipped to `clipping_norm`.

        After a refusal nothing has changed; otherwise the decay advances.

        Args:
            total: the finite sum: one array of any shape, or several whose summands' norm was taken together. The
                caller is responsible for clipping and adding; `clip_and_release` does both exactly. Coordinates are
                limited to 2^23 times the larger of C and the noise's standard deviation.
            run: to charge, or `Unmetered`.
            sampling_probability: q if the summands are a Poisson sample; None if they are all records.

        Returns:
            The noisy sum, shaped as `total`.

        Raises:
            ValueError: `total` is not finite or empty, or the noise multiplier has decayed below 1e-3.
            Exception: from `run`; nothing was released and nothing has changed.
        """
        parts = parts_of(total)
        vector = flat(parts)
        if not np.isfinite(vector).all():
            raise ValueError("The sum has a NaN or an infinity, so its summands were not clipped.")
        z, lattice = self._scales()
        release = self._prepare_release(z, lattice, lattice.multiples(vector))
        release.authorize(require_run(run), sampling_probability)
        return shaped_like(total, split(release.draw(), [part.shape for part in parts]))

    def prepare(self, rows: Sequence[NDArray[Any]]) -> PreparedRelease:
        """Clip vectors to the current norm, and prepare the release of their sum.

        Args:
            rows: one array (n, d_j) for each parameter; row i of all of them is one summand.

        Returns:
            The release; its result is the noisy sum, (sum of the d_j,).

        Raises:
            ValueError: the noise multiplier has decayed below 1e-3, or there are too many summands.
        """
        release, _ = self.prepare_sum(rows)
        return release

    def prepare_sum(self, rows: Sequence[NDArray[Any]]) -> tuple[PreparedRelease, ClippedSum]:
        """Prepare a release as `prepare`, and return it with the private sum before noise.

        Args:
            rows: as for `prepare`.

        Returns:
            The release and the sum.

        Raises:
            ValueError: as `prepare`.
        """
        z, lattice = self._scales()
        total = clipped_sum(rows, self._clipping_norm, lattice)
        return self._prepare_release(z, lattice, total.multiples), total

    def state_dict(self) -> dict[str, object]:
        """Return the number of releases and the clipping norm for a checkpoint; no random state."""
        return {"releases": self._releases, "clipping_norm": self._clipping_norm}

    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint.

        Args:
            state: from `state_dict` of a mechanism with the same arguments.

        Raises:
            ValueError: it is invalid; nothing has changed.
        """
        found = checks.state(state, _STATE, "GaussianNoise")
        releases = checks.whole("releases", found["releases"], 0, MAX_RELEASES, "how many releases there were")
        self._clipping_norm = checks.clipping_norm("clipping_norm", found["clipping_norm"])
        self._releases = releases

    def _scales(self) -> tuple[float, Lattice]:
        z = self.noise_multiplier
        return z, Lattice.for_scales(self._clipping_norm, z * self._clipping_norm)

    def _prepare_release(self, z: float, lattice: Lattice, multiples: Floats) -> PreparedRelease:
        """Fix norm and noise now, so that the draw matches the charge."""
        scale = z * rounded_norm(self._clipping_norm, multiples.size, lattice)

        def draw() -> Floats:
            noisy = lattice.add(multiples, self._randomness.normals(multiples.size), scale)
            self._releases += 1
            return noisy

        return PreparedRelease(gaussian(z, clipped=self._clipped), draw, secure=self.secure)
