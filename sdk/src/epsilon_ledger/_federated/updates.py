"""The noisy mean of clients' updates, whose sensitivity no reply can enlarge."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger._federated.errors import UnsupportedRoundError
from epsilon_ledger.mechanisms import AdaptiveClipping, GaussianNoise, Unmetered
from epsilon_ledger.mechanisms.clipping import ClippedSum

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]

CHARGED = Unmetered("charged as the event of its round")


class _Updates:
    """One parameter's updates as rows, computed while they are clipped: replies are large."""

    def __init__(self, name: str, replies: Sequence[Arrays], current: Arrays) -> None:
        self._name, self._replies = name, replies
        self._current = np.asarray(current[name], dtype=np.float64).reshape(-1)
        self.shape = (len(replies), self._current.size)

    def __getitem__(self, rows: slice) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.stack(
                [
                    np.asarray(reply[self._name], dtype=np.float64).reshape(-1) - self._current
                    for reply in self._replies[rows]
                ]
            )


class NoisyMean:
    """A round's release, computed up to its noise.

    Every reply is clipped here, whoever clipped it before, and all parameters together: scalars too. The sum is divided
    by a fixed number of clients, so that a missing reply counts as no update, and weighs nothing else. Replies that do
    not fit, and those with a NaN or an infinity, count as missing. Parameters that are no floats stay as they are.

    Args:
        mechanism: clips and adds noise; the norm of adaptive clipping moves with the draw.
        replies: of different clients: their parameters.
        current: parameters that the clients started from.
        clients: public divisor of the sum.
        within: whether each reply's client found its update within the norm, if the clients have clipped.

    Raises:
        UnsupportedRoundError: no parameter is a float.

    Source:
        McMahan, Ramage, Talwar, Zhang 2018 (arXiv 1710.06963), the estimator with a fixed denominator.
    """

    def __init__(
        self,
        mechanism: GaussianNoise | AdaptiveClipping,
        replies: Sequence[Arrays],
        current: Arrays,
        *,
        clients: int,
        within: Sequence[bool] | None = None,
    ) -> None:
        self._mechanism, self._current, self._clients = mechanism, current, clients
        self._names = [name for name, array in current.items() if np.asarray(array).dtype.kind == "f"]
        if not self._names:
            raise UnsupportedRoundError(
                "These parameters have no array of floats, so there is nothing to add noise to."
            )
        fitting = [fits(reply, current) for reply in replies]
        taken = [reply for reply, fit in zip(replies, fitting, strict=True) if fit]
        self.missing = len(replies) - len(taken)
        """Number of replies that do not fit."""
        rows = cast("list[NDArray[Any]]", [_Updates(name, taken, current) for name in self._names])
        if isinstance(mechanism, ClientCounts) and within is not None:
            mechanism.within = sum(bit for bit, fit in zip(within, fitting, strict=True) if fit)
        self._release = mechanism.prepare(rows)

    def draw(self) -> dict[str, NDArray[Any]]:
        """Draw the noise, after the round was charged, and return the new parameters."""
        self._release.authorize(CHARGED)
        mean = self._release.draw() / self._clients
        new, start = {name: np.asarray(array) for name, array in self._current.items()}, 0
        for name in self._names:
            old = new[name]
            part = mean[start : start + old.size].reshape(old.shape)
            new[name] = np.asarray(old.astype(np.float64) + part, dtype=old.dtype)
            start += old.size
        return new


class ClientCounts(AdaptiveClipping):
    """Adaptive clipping with the count that the clients report, who have clipped already."""

    within = 0

    def _fraction(self, total: ClippedSum) -> float:
        return super()._fraction(replace(total, within=self.within))


def fits(reply: Arrays, current: Arrays) -> bool:
    """Return whether a reply has the parameters that its client was sent."""
    return reply.keys() == current.keys() and all(
        array.shape == np.shape(current[name]) and array.dtype.kind in "fiu" for name, array in reply.items()
    )
