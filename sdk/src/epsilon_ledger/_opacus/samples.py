"""The samples of a training: what a sampler drew, in which pieces, and which of them has reached the training."""

import math
import weakref
from collections import deque
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, Protocol

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

from epsilon_ledger import Event

POISSON: Final = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


@dataclass(eq=False, slots=True)
class Draw:
    """One draw of a sampler, which one charge pays for.

    Args:
        size: how many records were drawn.
        sampling_probability: in (0, 1], with which each record was drawn; None: the sampler does not tell.
        place: epoch of the sampler, and number of the draw in its iteration; equal on all ranks.
        unreleased: what the charge covers and was not released yet, by optimizer; None: nothing was charged yet.
    """

    size: int
    sampling_probability: float | None
    place: tuple[int, int]
    unreleased: dict[DPOptimizer, list[Event]] | None = None


@dataclass(eq=False, slots=True, frozen=True)
class Piece:
    """A draw, or what a BatchMemoryManager made of it.

    Args:
        draw: what it is a piece of.
        index: its number, from 0.
        last: whether no other piece of the draw follows.
        split: whether a BatchMemoryManager made it.
        size: how many records it has.
    """

    draw: Draw
    index: int
    size: int
    last: bool
    split: bool


class Iteration:
    """One pass over a loader: pieces in the order in which they were drawn, which is that in which they arrive."""

    def __init__(self) -> None:
        self._coming: deque[Piece] = deque()
        self.current: Piece | None = None
        """The newest piece that the training was handed."""

    def add(self, piece: Piece) -> None:
        """Take up a piece that was drawn; with workers that is ahead of its use.

        Args:
            piece: the next one.
        """
        self._coming.append(piece)

    def hand(self) -> None:
        """Note that the next piece has reached the training."""
        if self._coming:
            self.current = self._coming.popleft()


class Consumer(Protocol):
    """An optimizer that may hold a part of a sample."""

    def require_nothing_open(self) -> None:
        """Raise if it holds the sum of some pieces of a sample, and not of all."""
        ...


class SampleSource:
    """What is known of one sampler's draws; all optimizers that step its samples share it.

    Args:
        kind: of the sampler.
    """

    def __init__(self, kind: type) -> None:
        self.poisson = kind in POISSON
        self.lock = RLock()
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self.iteration = Iteration()
        self.opening: Iteration | None = None
        """The iteration that a loader is about to begin."""
        self.random_if_empty = False
        """Whether the loader puts a random record into an empty batch."""
        self.handed_by_trainer = False
        """Whether a framework fetches ahead, and says itself (`iteration.hand`) which batch it trains on."""

    def begin(self) -> Iteration:
        """Begin a new iteration; what the former one drew and did not release is given up.

        Returns:
            The iteration.

        Raises:
            UnsupportedTrainingError: an optimizer holds a part of a sample.
        """
        for consumer in tuple(self.consumers):
            consumer.require_nothing_open()
        self.iteration = Iteration()
        return self.iteration


def drawn_probability(sampler: Any) -> float:  # noqa: ANN401 - mypy does not read Opacus
    """Read with which probability a Poisson sampler draws each record now.

    The sampler draws a record if a random number of torch's default type is below its rate. Such numbers are multiples
    of 2^-24 (for float32), so a record is drawn a little more often than the rate says, which counts at tiny rates.

    Args:
        sampler: one of Opacus'.

    Returns:
        The probability, in (0, 1].
    """
    grain = torch.finfo(torch.get_default_dtype()).eps / 2
    return float(min(1.0, math.ceil(sampler.sample_rate / grain) * grain))
