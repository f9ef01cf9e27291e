"""Laplace noise for local differential privacy, on each client's values."""

from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Event, NeighboringRelation, laplace
from epsilon_ledger.mechanisms import checks
from epsilon_ledger.mechanisms.gaussian import MAX_RELEASES
from epsilon_ledger.mechanisms.lattice import Lattice
from epsilon_ledger.mechanisms.randomness import randomness
from epsilon_ledger.mechanisms.releases import Authorizer, PreparedRelease, require_run

Floats = NDArray[np.float64]

_STATE: Final = frozenset({"releases"})


class LaplaceNoise:
    """Laplace noise of scale b = `noise_multiplier` times `l1_sensitivity` on every value of every client.

    One release is (epsilon, 0)-DP for each client with epsilon = 1 / noise multiplier, if any two of its possible
    vectors are at most `l1_sensitivity` apart. The caller guarantees the sensitivity. Two vectors of probabilities are
    up to 2 apart in L1, not 1.

    Values and noise are added on a lattice without rounding (see `lattice`). The scale is larger by the cost of
    rounding: at most the number of values times 2^-28, for b up to the sensitivity. Each noise value is the sum of four
    transformed uniforms after Holohan and Braghin, and finite. Exactly pure DP is not claimed: noise ends at 90 scales,
    which a Laplace variable exceeds with a probability of e^-90, and its probabilities are those of floats. Mironov's
    snapping is not done.

    Args:
        noise_multiplier: b over the sensitivity, in [1e-3, 1e6]; or
        epsilon: of one release, in [1e-6, 1e3].
        l1_sensitivity: maximum L1 distance between two vectors of one client, in [1e-9, 1e9].
        neighboring_relation: of the charged population. The service relates a noise multiplier to the norm of one
            record, and halves it under `replace_one`, where the distance is two norms. The event's is therefore doubled
            there, so that the client's epsilon is charged once.
        insecure_seed: for tests: an integer or a numpy Generator. It allows to remove the noise.

    Raises:
        ValueError: an argument is out of its bounds, or not exactly one of noise_multiplier and epsilon is given.

    Source:
        Dwork, McSherry, Nissim, Smith 2006 (TCC), Proposition 1; Holohan, Braghin 2021 (arXiv 2107.10138).
    """

    def __init__(
        self,
        noise_multiplier: float | None = None,
        *,
        epsilon: float | None = None,
        l1_sensitivity: float,
        neighboring_relation: NeighboringRelation = "add_or_remove_one",
        insecure_seed: int | np.random.Generator | None = None,
    ) -> None:
        if (noise_multiplier is None) == (epsilon is None):
            raise ValueError("Give noise_multiplier or epsilon, and not both.")
        if epsilon is not None:
            noise_multiplier = 1 / checks.real("epsilon", epsilon, 1e-6, 1e3, "the privacy loss of one release")
        if neighboring_relation not in get_args(NeighboringRelation):
            raise ValueError(
                f"neighboring_relation is {neighboring_relation!r}, but it must be one of the population's: "
                f"{', '.join(get_args(NeighboringRelation))}."
            )
        self._noise_multiplier = checks.noise_multiplier("noise_multiplier", noise_multiplier)
        self._sensitivity = checks.real(
            "l1_sensitivity", l1_sensitivity, 1e-9, 1e9, "the largest L1 distance between two vectors of a client"
        )
        # The service would halve it.
        doubled = self._noise_multiplier * (2 if neighboring_relation == "replace_one" else 1)
        self._event_noise_multiplier = checks.noise_multiplier("the event's noise multiplier", doubled)
        self._randomness = randomness(insecure_seed)
        self._releases = 0

    @property
    def noise_multiplier(self) -> float:
        """Scale of the noise over the L1 sensitivity."""
        return self._noise_multiplier

    @property
    def epsilon(self) -> float:
        """Maximum cost of one release for a client."""
        return 1 / self._noise_multiplier

    @property
    def l1_sensitivity(self) -> float:
        """Maximum L1 distance between two vectors of one client."""
        return self._sensitivity

    @property
    def scale(self) -> float:
        """Scale b of the noise; its standard deviation is sqrt(2) b."""
        return self._noise_multiplier * self._sensitivity

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self._releases

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable; False if it is seeded."""
        return self._randomness.secure

    @property
    def event(self) -> Event:
        """Event of the next release on each client."""
        return laplace(self._event_noise_multiplier)

    def release(self, values: NDArray[Any], *, run: Authorizer) -> Floats:
        """Authorize one release, and add its noise to the values of all clients.

        Args:
            values: (n_clients, k), finite: row i is the vector of client i. Values are limited to 2^23 times the larger
                of the sensitivity and the scale.
            run: charged once for all clients, because each is in one row; or `Unmetered`.

        Returns:
            (n_clients, k) noisy values.

        Raises:
            ValueError: `values` has another shape, or is not finite.
            Exception: from `run`; nothing was released.
        """
        found = np.asarray(values)
        if found.ndim != 2 or found.dtype.kind not in "fiu" or not np.isfinite(found).all():  # noqa: PLR2004
            raise ValueError(
                f"values have the shape {found.shape} and the type {found.dtype}, but finite real numbers of the shape "
                "(n_clients, k) are expected: one row for each client."
            )
        lattice = Lattice.for_scales(self._sensitivity, self.scale)
        # Rounding moves two vectors apart by up to a spacing in each coordinate.
        scale = self._noise_multiplier * (self._sensitivity + found.shape[1] * lattice.spacing)
        multiples = lattice.multiples(found.astype(np.float64, copy=False))

        def draw() -> Floats:
            noise = self._randomness.laplaces(multiples.size).reshape(multiples.shape)
            self._releases += 1
            return lattice.add(multiples, noise, scale)

        release = PreparedRelease(self.event, draw, secure=self.secure)
        release.authorize(require_run(run))
        return release.draw()

    def state_dict(self) -> dict[str, object]:
        """Return the number of releases for a checkpoint; no random state."""
        return {"releases": self._releases}

    def load_state_dict(self, state: object) -> None:
        """Restore a checkpoint.

        Args:
            state: from `state_dict`.

        Raises:
            ValueError: it is invalid; nothing has changed.
        """
        found = checks.state(state, _STATE, "LaplaceNoise")
        self._releases = checks.whole("releases", found["releases"], 0, MAX_RELEASES, "how many releases there were")
