"""Samples of a training: draws, their physical batches, and their delivery."""

import functools
import math
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, Protocol

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

from epsilon_ledger import Event
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.generators import Draws, draw_plainly, private_samples

POISSON: Final = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


@dataclass(eq=False, slots=True)
class Draw:
    """One draw of a sampler, covered by one charge.

    Args:
        records: indices of the records.
        sampling_probability: of each record, in (0, 1]; None if the sampler does not state it.
        place: epoch and index of the draw; equal on all ranks.
        unreleased: charged and unreleased events by optimizer; None before the charge.
    """

    records: list[Any]
    sampling_probability: float | None
    place: tuple[int, int]
    unreleased: dict[DPOptimizer, list[Event]] | None = None

    @property
    def size(self) -> int:
        """Number of records."""
        return len(self.records)


@dataclass(eq=False, slots=True)
class PhysicalBatch:
    """A draw, or a part of it from a BatchMemoryManager.

    Args:
        draw: the whole draw.
        index: from 0.
        size: number of records.
        last: whether it is the draw's last physical batch.
        split: whether a BatchMemoryManager made it.
    """

    draw: Draw
    index: int
    size: int
    last: bool
    split: bool


class Iteration:
    """One pass over a loader; physical batches arrive in the order of their draws."""

    def __init__(self) -> None:
        self._coming: deque[PhysicalBatch] = deque()
        self.current: PhysicalBatch | None = None
        """The physical batch delivered last."""

    def add(self, physical: PhysicalBatch) -> None:
        """Queue a drawn physical batch; workers draw ahead of its use."""
        self._coming.append(physical)

    def deliver(self) -> None:
        """Deliver the next physical batch to the training."""
        if self._coming:
            self.current = self._coming.popleft()


class Consumer(Protocol):
    """An optimizer that may hold a part of a sample."""

    def require_nothing_open(self) -> None:
        """Raise if it holds an incomplete sample."""
        ...


class SampleSource:
    """Draws of one sampler, shared by all optimizers that step its samples."""

    def __init__(self, sampler: Any) -> None:  # noqa: ANN401 - any sampler
        self.kind: type = type(sampler)
        """Class of the sampler."""
        self.poisson = self.kind in POISSON
        self._sampler = weakref.ref(sampler)
        self.draw: Draws = draw_plainly
        """Draws from the sampler."""
        self.lock = RLock()
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self.iteration = Iteration()
        self.opening: Iteration | None = None
        """The iteration that a loader is about to start."""
        self.random_if_empty = False
        """Whether the loader puts a random record into an empty batch."""
        self.delivered_by_trainer = False
        """Whether a framework fetches ahead, and says itself (`iteration.deliver`) which batch it trains on."""

    def keep_samples(self, *, secure: bool) -> None:
        """Let the samples come from random numbers of the sampler's own, unless they do already.

        Args:
            secure: whether the optimizer is in Opacus' secure mode.
        """
        if self.draw is draw_plainly:
            self.draw = private_samples(self._sampler(), poisson=self.poisson, secure=secure)

    def begin(self) -> Iteration:
        """Begin a new iteration, discarding unreleased draws of the previous one.

        Raises:
            UnsupportedTrainingError: an optimizer holds a part of a sample.
        """
        for consumer in tuple(self.consumers):
            consumer.require_nothing_open()
        self.iteration = Iteration()
        return self.iteration


def require_distinct(records: Iterable[Any], drawn: str) -> None:
    """Require that no record is in one batch twice.

    Args:
        records: indices of the whole batch.
        drawn: who drew them, for the message.

    Raises:
        UnsupportedTrainingError: a record is in it more than once.
    """
    for record, count in Counter(map(comparable, records)).most_common(1):
        if count == 1:
            return
        raise UnsupportedTrainingError(
            f"{drawn} record {record} {count} times for one batch. It would move the sum by as many "
            f"clipping norms, and is charged for one. Draw each record once: let make_private draw Poisson samples, or "
            f"shuffle without replacement and without weights."
        )


def comparable(index: Any) -> Any:  # noqa: ANN401 - what a sampler draws: a number, or a tensor of one or several
    """Return an index that is compared by value."""
    value = index.tolist() if hasattr(index, "tolist") else index
    return tuple(value) if isinstance(value, list) else value


def drawn_probability(sampler: Any) -> float:  # noqa: ANN401 - mypy does not read Opacus
    """Compute the probability with which an observed Poisson sampler draws a record: `drawable_probability`."""
    return drawable_probability(sampler.sample_rate)


def drawable_probability(rate: float) -> float:
    """Round a sample rate down to a probability that torch's random numbers meet, at least the smallest one.

    A record is drawn if a random number of torch's default type, a multiple of 2^-24 for float32, is below the rate.
    A rate between two multiples draws with the larger one, more often than an account has planned with that rate.
    """
    return _rounded_down(rate, torch.get_default_dtype())


@functools.lru_cache
def _rounded_down(rate: float, dtype: torch.dtype) -> float:
    grain = torch.finfo(dtype).eps / 2
    return float(min(1.0, max(1, math.floor(rate / grain)) * grain))
