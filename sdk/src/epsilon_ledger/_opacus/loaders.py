"""Observation of samplers and loaders: each draw, and each delivered batch.

An observed sampler keeps its identity; its class becomes a reporting subclass. All loaders that use it, such as those
of a BatchMemoryManager, are therefore observed too.
"""

import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import numpy as np
import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler
from torch.utils.data import DataLoader

from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.guard import present_guard
from epsilon_ledger._opacus.samples import (
    Draw,
    Iteration,
    PhysicalBatch,
    SampleSource,
    drawn_probability,
    require_distinct,
)

_SOURCES: Final[weakref.WeakKeyDictionary[Any, SampleSource]] = weakref.WeakKeyDictionary()


def observe(data_loader: DataLoader) -> SampleSource | None:
    """Observe a loader's draws from its next iteration on; None if its batches cannot be observed.

    `data_loader` comes from `make_private`, a BatchMemoryManager, or the user.
    """
    sampler = sampler_of(data_loader)
    if isinstance(sampler, _ObservedSampler) and sampler in _SOURCES:
        return _SOURCES[sampler]
    kind: type = type(sampler)
    try:
        source = _SOURCES.setdefault(sampler, SampleSource(sampler))
        sampler.__class__ = _derived(_ObservedSampler, kind)
    except TypeError:  # a list of batches, or none
        return None
    if DataLoader.__iter__ is not _observed_iteration:
        DataLoader.__iter__ = _observed_iteration
    return source


def outstanding_sources() -> list[SampleSource]:
    """Return the sources whose last draw was neither stepped nor charged."""
    return [source for source in tuple(_SOURCES.values()) if source.outstanding]


def sampler_of(data_loader: DataLoader) -> Any:  # noqa: ANN401 - any iterable will do for torch
    """Return a loader's batch sampler before a BatchMemoryManager's splitting, or None."""
    sampler = data_loader.batch_sampler
    return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def kind_of(observed: Any) -> type:  # noqa: ANN401 - any sampler
    """Return a sampler's original class."""
    kind: type = type(observed)
    return kind.__mro__[1] if issubclass(kind, _ObservedSampler) else kind


class _ObservedSampler:
    """Mixin of a sampler that reports its draws."""

    def __iter__(self) -> Iterator[Any]:
        source = _SOURCES.get(self)
        return _indices(self) if source is None else _Drawing(self, source, split=False)

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401 - as the protocol has it
        """Leave copies and pickles unobserved, because they draw differently."""
        kind: Any = kind_of(self)
        made, (_, *arguments), *state = kind.__reduce_ex__(self, protocol)
        return made, (kind, *arguments), *state


class _Drawing:
    """The draws of one iteration."""

    def __init__(self, sampler: _ObservedSampler, source: SampleSource, *, split: bool) -> None:
        self._sampler = sampler
        self._split = split
        self._source = source
        self._indices = _indices(sampler)
        # Without a loader, a draw is delivered at once.
        self._delivers = source.opening is None
        self.iteration: Iteration = source.opening or source.begin()
        if self._delivers:
            self.iteration.hand_to(self)
        self.draw: Draw | None = None
        self._count = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - a list or a tensor of indices
        sampler: Any = self._sampler
        probability = None
        if self._delivers:
            self._source.require_settled(self.iteration)
        if self._source.poisson:
            probability = sampler.sample_rate = drawn_probability(sampler)
        indices = self._source.draw(sampler, self._indices.__next__)
        if not self._source.poisson:
            require_distinct(indices, f"{self._source.kind.__name__} drew")
        self.draw = draw = Draw(indices, probability, (getattr(sampler, "epoch", 0), self._count))
        self._count += 1
        if not self._split:
            self.iteration.add(PhysicalBatch(draw, 0, draw.size, last=True, split=False))
            if self._delivers:
                self._source.deliver(self.iteration)
        return indices


class _ObservedSplitting(BatchSplittingSampler):
    """Splitting sampler that records its physical batches instead of signalling the optimizer in advance.

    Opacus queues a signal when a physical batch is drawn. If it is never stepped, because a loop ended or a worker
    prefetched it, it would leave its signal behind and shift all later ones.
    """

    def __iter__(self) -> Iterator[list[int]]:
        source = _SOURCES.get(self.sampler)
        return (
            super().__iter__() if source is None else self._physical_batches(_Drawing(self.sampler, source, split=True))
        )

    def _physical_batches(self, drawing: _Drawing) -> Iterator[list[int]]:
        for indices in drawing:
            assert drawing.draw is not None
            count = max(1, math.ceil(len(indices) / self.max_batch_size))
            for index, part in enumerate(np.array_split(np.asarray(indices, dtype=np.intp), count)):
                last = index == count - 1
                drawing.iteration.add(PhysicalBatch(drawing.draw, index, size=len(part), last=last, split=True))
                if present_guard(self.optimizer) is None:  # not attached: keep Opacus' own signals
                    self.optimizer.signal_skip_step(do_skip=not last)
                yield part.tolist()


class UnsizedSplitting(_ObservedSplitting):
    """Observed splitting without a length."""

    def __len__(self) -> int:
        """Raise: the number of physical batches depends on future draws."""
        raise TypeError("The number of physical batches depends on the batches that will be drawn.")


class _HandingIterator:
    """Mixin of a loader's iterator that reports each delivered batch."""

    source: SampleSource
    iteration: Iteration

    def __next__(self) -> Any:  # noqa: ANN401 - a batch
        kind: Any = type(self).__mro__[1]
        source, iteration = self.source, self.iteration
        if not source.delivered_by_trainer:
            source.require_settled(iteration)
        try:
            batch = kind.__next__(self)
        except StopIteration:
            iteration.ended = True
            raise
        if not source.delivered_by_trainer:
            source.deliver(iteration)
        return batch


_PLAIN_ITERATION: Final[Callable[[DataLoader], Any]] = DataLoader.__iter__


@functools.wraps(_PLAIN_ITERATION)
def _observed_iteration(loader: DataLoader) -> Any:  # noqa: ANN401 - torch's iterator
    sampler = loader.batch_sampler
    source = _SOURCES.get(sampler_of(loader)) if isinstance(sampler_of(loader), _ObservedSampler) else None
    if source is None:
        return _PLAIN_ITERATION(loader)
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise UnsupportedTrainingError(
            "With in_order=False the workers' batches arrive in another order than they were drawn in, so it is not "
            "known which sample a step releases. Leave in_order=True."
        )
    if type(sampler) is BatchSplittingSampler:
        sampler.__class__ = _ObservedSplitting
    source.opening = source.begin()
    try:
        iterator = _PLAIN_ITERATION(loader)
        if not isinstance(iterator, _HandingIterator):
            kind: type = type(iterator)
            iterator.__class__ = _derived(_HandingIterator, kind)
        iterator.source = source
        source.opening.hand_to(iterator)
        return iterator
    finally:
        source.opening = None


def _indices(sampler: Any) -> Iterator[Any]:  # noqa: ANN401 - any sampler
    """Draw as the sampler does, but include a rank's empty parts."""
    if isinstance(sampler, DistributedUniformWithReplacementSampler):
        return _parts_of_rank(sampler)
    kind: Any = kind_of(sampler)
    drawn: Iterator[Any] = iter(kind.__iter__(sampler))
    return drawn


def _parts_of_rank(sampler: Any) -> Iterator[list[int]]:  # noqa: ANN401 - mypy does not read Opacus
    """Draw this rank's parts of the samples, including empty ones.

    Opacus skips empty parts, so that the rank would continue with the next sample, and a rank's only record would be in
    every batch.
    """
    order = torch.arange(sampler.total_size)
    if sampler.shuffle:
        order = torch.randperm(
            sampler.total_size, generator=torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        )
    own = order[sampler.rank :: sampler.num_replicas]
    for _ in range(sampler.num_batches):
        yield own[torch.rand(len(own), generator=sampler.generator) < sampler.sample_rate].tolist()


@functools.cache
def _derived(mixin: type, kind: type) -> type:
    """Derive a reporting class; only a subclass can replace an object's class."""
    methods = {name: method for name, method in vars(mixin).items() if inspect.isfunction(method)}
    return type(kind.__name__, (kind, mixin), methods | {"__module__": kind.__module__, "__doc__": kind.__doc__})
