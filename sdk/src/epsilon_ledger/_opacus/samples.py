"""Samples of a training: draws, their physical batches, and their delivery."""

import functools
import math
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, Protocol

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

from epsilon_ledger import Event, Run, Trial
from epsilon_ledger._opacus.errors import NOT_STEPPED, SECOND_ITERATION, UnsupportedTrainingError
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
        asked: whether the ledger was asked to admit it; what it answers does not depend on the records.
    """

    records: list[Any]
    sampling_probability: float | None
    place: tuple[int, int]
    unreleased: dict[DPOptimizer, list[Event]] | None = None
    asked: bool = False

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
    """One pass over a loader; physical batches arrive in the order of their draws.

    Args:
        evaluation: whether its batches are read only.
    """

    def __init__(self, *, evaluation: bool) -> None:
        self._coming: deque[PhysicalBatch] = deque()
        self._iterator: weakref.ref[Any] | None = None
        self.evaluation = evaluation
        """Whether no batch of it is stepped from here on."""
        self.ended = False

    def add(self, physical: PhysicalBatch) -> None:
        """Queue a drawn physical batch; workers draw ahead of its use."""
        self._coming.append(physical)

    def take(self) -> PhysicalBatch | None:
        """Take the next physical batch, or None: it was drawn unobserved."""
        return self._coming.popleft() if self._coming else None

    def hand_to(self, iterator: Any) -> None:  # noqa: ANN401 - a loader's iterator, or a sampler's
        """Belong to an iterator, which a later iteration may take over."""
        iterator.iteration = self
        self._iterator = weakref.ref(iterator)

    @property
    def underway(self) -> bool:
        """Whether a loop may still take batches of it: its iterator lives, and has not ended."""
        iterator = None if self._iterator is None else self._iterator()
        return not self.ended and iterator is not None and iterator.iteration is self


class Consumer(Protocol):
    """An optimizer that steps samples."""

    @property
    def evaluates(self) -> bool:
        """Whether its module is known to be in evaluation mode."""
        ...

    def pays_by(self, run: Run | Trial | None) -> bool:
        """Return whether its steps are charged to a run."""
        ...

    def require_nothing_open(self) -> None:
        """Raise if it holds an incomplete sample."""
        ...

    def charge_unreleased(self, draw: Draw) -> None:
        """Charge a draw that it will not release."""
        ...


class SampleSource:
    """Draws of one sampler, shared by all optimizers that step its samples.

    One draw is outstanding at most: the next one is delivered when it was stepped, or charged without a step. Otherwise
    the data could decide which draws are charged.
    """

    def __init__(self, sampler: Any) -> None:  # noqa: ANN401 - any sampler
        self.kind: type = type(sampler)
        """Class of the sampler."""
        self.poisson = self.kind in POISSON
        self._sampler = weakref.ref(sampler)
        self.draw: Draws = draw_plainly
        """Draws from the sampler."""
        self.lock = RLock()
        self.consumers: weakref.WeakKeyDictionary[Consumer, None] = weakref.WeakKeyDictionary()
        """The attached optimizers, in order."""
        self.newest = Iteration(evaluation=False)
        """The iteration that was begun last, evaluations apart."""
        self.iteration = self.newest
        """The iteration of the current physical batch."""
        self.current: PhysicalBatch | None = None
        """The physical batch delivered last, evaluations apart."""
        self.evaluated = False
        """Whether the last delivery was for an evaluation."""
        self.opening: Iteration | None = None
        """The iteration that a loader is about to start."""
        self.random_if_empty = False
        """Whether the loader puts a random record into an empty batch."""
        self.delivered_by_trainer = False
        """Whether a framework fetches ahead, and says itself (`deliver_next`) which batch it trains on."""
        self.owed = 0
        """Number of draws of a distributed training that were given up, and are charged with its next release."""
        self._warned = False

    def keep_samples(self, *, secure: bool) -> None:
        """Let the samples come from random numbers of the sampler's own, unless they do already.

        Args:
            secure: whether the optimizer is in Opacus' secure mode.
        """
        if self.draw is draw_plainly:
            self.draw = private_samples(self._sampler(), poisson=self.poisson, secure=secure)

    def begin(self) -> Iteration:
        """Begin a new iteration; without gradients it is an evaluation's.

        Raises:
            UnsupportedTrainingError: an optimizer holds a part of a sample.
        """
        begun = Iteration(evaluation=not torch.is_grad_enabled())
        if not begun.evaluation and not self._is_evaluated_within(begun):
            for consumer in tuple(self.consumers):
                consumer.require_nothing_open()
            self.newest = begun
        return begun

    def _is_evaluated_within(self, iteration: Iteration) -> bool:
        """Return whether an iteration is a second one, in evaluation mode."""
        return iteration is not self.iteration and self.iteration.underway and self._evaluates

    @property
    def _evaluates(self) -> bool:
        return bool(self.consumers) and all(consumer.evaluates for consumer in self.consumers)

    def require_settled(self, iteration: Iteration) -> None:
        """Require, before an iteration delivers, that the last draw was stepped; charge one that was left behind.

        Raises:
            UnsupportedTrainingError: it was not.
            LedgerError: its charge was not admitted.
        """
        if iteration.evaluation or not torch.is_grad_enabled() or not self.consumers:
            return
        if self._is_evaluated_within(iteration):
            iteration.evaluation = True
            return
        current, own = self.current, iteration is self.iteration
        if current is None or current.draw.asked or (own and not current.last):
            return
        if not own and self.iteration.underway:
            raise UnsupportedTrainingError(SECOND_ITERATION)
        if own and not self._evaluates:
            raise UnsupportedTrainingError(NOT_STEPPED)
        self.charge_unreleased()
        self._warn_of_charge()
        # A loop in evaluation mode that does not step its batches is an evaluation.
        iteration.evaluation = own

    def deliver(self, iteration: Iteration) -> None:
        """Deliver the next physical batch of an iteration to the training, or to an evaluation."""
        physical = iteration.take()
        if physical is None or not self.consumers:
            return
        self.evaluated = iteration.evaluation or not torch.is_grad_enabled()
        if not self.evaluated or (self.current is not None and physical.draw is self.current.draw):
            self.current, self.iteration = physical, iteration

    def deliver_next(self) -> None:
        """Deliver as `delivered_by_trainer` demands.

        Raises:
            LedgerError: as `require_settled`.
        """
        self.require_settled(self.newest)
        self.deliver(self.newest)

    @property
    def outstanding(self) -> bool:
        """Whether the ledger was not asked for the current draw yet."""
        return self.current is not None and not self.current.draw.asked

    def charge_unreleased(self) -> None:
        """Charge the current draw, unless it was, and let nobody release it.

        Raises:
            LedgerError: the charge was not admitted.
        """
        if self.current is None or self.current.draw.asked:
            return
        for consumer in tuple(self.consumers)[-1:]:
            consumer.charge_unreleased(self.current.draw)

    def _warn_of_charge(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "A batch was fetched and not stepped, and was charged as drawn: whether a drawn batch is charged must "
                "not depend on what is in it. It was left by `break`, or by next(iter(loader)), or read in evaluation "
                "mode. Look at batches and evaluate under torch.no_grad(), which costs nothing.",
                stacklevel=2,
            )


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
