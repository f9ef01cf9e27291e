"""What one step of an Opacus optimizer does to the data, read off the optimizer and its loader at that step."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import DataLoader

from epsilon_ledger import Event, LedgerError, adaptive_clipping, gaussian, poisson_sampled

_FLAT: Final = (DPOptimizer, DistributedDPOptimizer)
_PER_LAYER: Final = (DPPerLayerOptimizer, SimpleDistributedPerLayerOptimizer)
_GHOST: Final = (DPOptimizerFastGradientClipping, DistributedDPOptimizerFastGradientClipping)
_POISSON: Final = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)

_SAY_HOW: Final = (
    "Say how to charge it: with sampling_probability=1.0 every step is charged as if it saw all the data; event=... "
    "takes a function from the optimizer to the event of the step that it is about to take."
)


class UnsupportedTrainingError(LedgerError):
    """Opacus was set up to do something of which the cost is not known; nothing was charged, release nothing."""


def sampling_probability_of(data_loader: DataLoader) -> Callable[[], float]:
    """Find out how a loader samples.

    The sampler draws a record if a random number of torch's default type is below its rate. Such numbers are multiples
    of 2^-24 (for float32), so a record is drawn a little more often than the rate says, which counts at tiny rates.

    Args:
        data_loader: what `make_private` returned, or what a BatchMemoryManager made of it.

    Returns:
        A function that is called once a step and answers with the probability, in (0, 1], with which each record was
        drawn; where workers draw batches ahead, the largest of those that the step's batch may have been drawn with.

    Raises:
        UnsupportedTrainingError: the loader does not draw Poisson samples.
    """
    sampler = _sampler(data_loader)
    if type(sampler) not in _POISSON:
        raise UnsupportedTrainingError(
            f"{type(data_loader).__name__} with {type(sampler).__name__} does not draw Poisson samples, so its batch "
            f"size over n is no sampling probability, and the usual accounting does not hold. Let make_private do it "
            f"(poisson_sampling=True, its default), and give its data loader. {_SAY_HOW}"
        )
    drawn: deque[float] = deque(maxlen=1 + data_loader.num_workers * (data_loader.prefetch_factor or 0))

    def largest() -> float:
        grain = torch.finfo(torch.get_default_dtype()).eps / 2
        drawn.append(min(1.0, math.ceil(sampler.sample_rate / grain) * grain))
        return max(drawn)

    return largest


def check_unsampled(data_loader: DataLoader, neighboring_relation: str) -> None:
    """Let a loader pass of which each step may be charged as if it saw all the data.

    With a record more, the batches of a shuffled loader are other ones: the record pushes another one out of its batch,
    so that the sum moves by two clipping norms. Where neighbours have the same size, that does not happen.

    Args:
        data_loader: any.
        neighboring_relation: the population's.

    Raises:
        UnsupportedTrainingError: a step may cost more than without sampling.
    """
    poisson = type(_sampler(data_loader)) in _POISSON
    if neighboring_relation == "add_or_remove_one" and not poisson and len(data_loader) > 1:
        raise UnsupportedTrainingError(
            f"This loader has {len(data_loader)} batches that are no Poisson samples, and the population is under "
            f"add_or_remove_one: a record more pushes others out of their batches, and sums move by two norms. "
            f"Let make_private draw Poisson samples, use one batch of all the data, or charge a population under "
            f"replace_one or replace_special."
        )


class StepReader:
    """Reads the event of the step that an optimizer is about to take.

    Args:
        optimizer: the optimizer, as `make_private` made it.
        probability: called once a step: the probability, in (0, 1], with which each record was drawn.

    Raises:
        UnsupportedTrainingError: an optimizer of this kind has no known cost.
    """

    def __init__(self, optimizer: DPOptimizer, probability: Callable[[], float]) -> None:
        self._probability = probability
        self._clipping_norm = optimizer.max_grad_norm
        self._noise = self._reader_for(type(optimizer))

    def __call__(self, optimizer: DPOptimizer) -> Event:
        """Read the event of the next release.

        Args:
            optimizer: its batch is clipped and summed, and its parameters have not moved.

        Returns:
            The event, with the noise and the sampling that hold now.

        Raises:
            UnsupportedTrainingError: this step is not what its accounting assumes.
        """
        if optimizer.accumulated_iterations != 1:
            raise UnsupportedTrainingError(
                f"{optimizer.accumulated_iterations} batches were accumulated for one step: a record may be in several "
                f"of them, which its clipping norm does not bound. Use a larger batch, and Opacus' BatchMemoryManager "
                f"if it does not fit into memory."
            )
        noise = self._noise(optimizer)
        probability = self._probability()
        return noise if probability == 1.0 else poisson_sampled(probability, noise)

    def _reader_for(self, kind: type) -> Callable[[Any], Event]:
        """Choose by the very type: a subclass may add its noise in another way."""
        if kind in _FLAT:
            return lambda optimizer: gaussian(optimizer.noise_multiplier)
        if kind in _PER_LAYER:
            return _per_layer
        if kind in _GHOST:
            return self._ghost
        if kind is AdaClipDPOptimizer:
            return _adaptive
        raise UnsupportedTrainingError(
            f"What a step of {kind.__module__}.{kind.__qualname__} costs is not known here. Give event=..., a function "
            f"from the optimizer to the event of the step that it is about to take."
        )

    def _ghost(self, optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
        """The module clips and the optimizer adds the noise: they must mean the same norm."""
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise UnsupportedTrainingError(
                "PrivacyEngineAdaptiveClipping sets its noise by the size of the batch, which Poisson sampling makes "
                "private, and moves the clipping norm before the step is asked for. Use clipping='adaptive' without "
                "ghost clipping."
            )
        if optimizer.max_grad_norm != self._clipping_norm:
            raise UnsupportedTrainingError(
                f"The optimizer's clipping norm went from {self._clipping_norm} to {optimizer.max_grad_norm}, but with "
                f"ghost clipping it is the module that clips, to its own: the noise would not fit. Keep the norm "
                f"constant, or use grad_sample_mode='hooks'."
            )
        return gaussian(optimizer.noise_multiplier)


def publish_fixed_fraction(optimizer: AdaClipDPOptimizer) -> None:
    """Make the fraction by which an AdaClipDPOptimizer moves its clipping norm the one that its accounting is for.

    Opacus divides the noisy count of unclipped gradients by the size of the batch, which Poisson sampling makes
    private: that quotient moves by up to a whole record, where Theorem 1 of Andrew et al. counts half a one. Here the
    count of b - 1/2 is divided by the expected size, and 1/2 added: what was published is the noisy count and nothing
    else.

    Args:
        optimizer: its noise is added, its clipping norm has not moved yet.

    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (arXiv 1905.03871), section 2.2 and Theorem 1.
    """
    expected = optimizer.expected_batch_size
    optimizer.unclipped_num = optimizer.unclipped_num + (expected - optimizer.sample_size) / 2
    optimizer.sample_size = expected


def _sampler(data_loader: DataLoader) -> Any:  # noqa: ANN401 - any iterable will do for torch
    """Find what draws the batches, before a BatchMemoryManager splits them."""
    sampler = data_loader.batch_sampler
    return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def _per_layer(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Each layer is clipped to a norm of its own; the noise follows `max_grad_norm`, which a scheduler may move."""
    together = math.hypot(*optimizer.max_grad_norms)
    ratio = float(optimizer.max_grad_norm) / together
    # Opacus computes the norm in single precision.
    return gaussian(optimizer.noise_multiplier * (1.0 if math.isclose(ratio, 1.0, rel_tol=1e-6) else ratio))


def _adaptive(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Opacus adds more noise to the gradients, so that they and the count together have `noise_multiplier`."""
    if optimizer.expected_batch_size is None:
        raise UnsupportedTrainingError("Adaptive clipping needs expected_batch_size: the actual size is private.")
    if optimizer._is_last_step_skipped:  # noqa: SLF001 - nothing public says that a batch comes in pieces
        raise UnsupportedTrainingError(
            "AdaClipDPOptimizer forgets the count of all but the last piece of a batch that a BatchMemoryManager has "
            "split, and which records are in that piece depends on all others. Use batches that fit into memory."
        )
    return adaptive_clipping(optimizer.noise_multiplier)
