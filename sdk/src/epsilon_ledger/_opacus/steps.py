"""Events of an Opacus optimizer's steps, read from its current state."""

import functools
import math
from collections.abc import Callable
from typing import Any, Final

from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader

from epsilon_ledger import Event, adaptive_clipping, gaussian
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.loaders import kind_of, sampler_of
from epsilon_ledger._opacus.parameters import require_exact
from epsilon_ledger._opacus.ranks import on_any_rank, workers
from epsilon_ledger._opacus.samples import POISSON
from epsilon_ledger._opacus.sharding import check_sharding
from epsilon_ledger._wire.coercion import noise, real

_FLAT: Final = (DPOptimizer, DistributedDPOptimizer)
_PER_LAYER: Final = (DPPerLayerOptimizer, SimpleDistributedPerLayerOptimizer)
GHOST: Final = (
    DPOptimizerFastGradientClipping,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
)


def check_unsampled(data_loader: DataLoader, neighboring_relation: str) -> None:
    """Require that each step of a loader may be charged without sampling.

    Under add_or_remove_one an additional record moves another record of a shuffled loader out of its batch, so that the
    sum moves by two clipping norms.

    Args:
        data_loader: any loader.
        neighboring_relation: of the population.

    Raises:
        UnsupportedTrainingError: a step may cost more than without sampling.
    """
    poisson = kind_of(sampler_of(data_loader)) in POISSON
    if neighboring_relation == "add_or_remove_one" and not poisson and len(data_loader) > 1:
        raise UnsupportedTrainingError(
            f"This loader has {len(data_loader)} batches that are no Poisson samples, and the population is under "
            f"add_or_remove_one: a record more pushes others out of their batches, and sums move by two norms. "
            f"Let make_private draw Poisson samples, use one batch of all the data, or charge a population under "
            f"replace_one or replace_special."
        )


class StepReader:
    """Reader of an optimizer's next step as an event on its sample.

    Args:
        optimizer: from `make_private`.

    Raises:
        UnsupportedTrainingError: the cost of this kind of optimizer is unknown, or a parameter is too coarse.
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        for parameter in optimizer.params:
            require_exact(parameter)
        self.mechanism = self._reader_for(type(optimizer))
        """Returns the event of an optimizer's next release, with its current noise."""

    def __call__(self, optimizer: DPOptimizer) -> Event:
        """Read the event of the next release, without the sampling.

        The batch is clipped and summed, and the parameters have not moved.

        Raises:
            UnsupportedTrainingError: the step does not meet the assumptions of its accounting.
        """
        if type(optimizer) is AdaClipDPOptimizer and optimizer._is_last_step_skipped:  # noqa: SLF001 - not public
            raise UnsupportedTrainingError(
                "AdaClipDPOptimizer forgets the count of all but the last physical batch when a BatchMemoryManager "
                "splits a batch, and the records of that physical batch depend on all others. Use batches that fit "
                "into memory."
            )
        return self.mechanism(optimizer)

    @staticmethod
    def _reader_for(kind: type) -> Callable[[Any], Event]:
        """Choose by exact type, because a subclass may add noise differently."""
        if kind in _FLAT:
            return lambda optimizer: _gaussian(float(optimizer.noise_multiplier))
        if kind in _PER_LAYER:
            return _per_layer
        if kind is FSDPOptimizerFastGradientClipping:
            return _sharded
        if kind in GHOST:
            return _ghost
        if kind is AdaClipDPOptimizer:
            return _adaptive
        raise UnsupportedTrainingError(
            f"What a step of {kind.__module__}.{kind.__qualname__} costs is not known here. Give event=..., a function "
            f"from the optimizer to the event of the step that it is about to take."
        )


def require_finite(optimizer: DPOptimizer) -> None:
    """Require that the noisy sum is finite.

    Opacus scales a gradient of infinite norm by 0, and an infinity times 0 is NaN, as is a NaN times anything: no
    clipping bounds it, and no noise hides it.

    Args:
        optimizer: with noisy gradients and unmoved parameters.

    Raises:
        UnsupportedTrainingError: the gradient of a record is not finite, on any rank.
        ValueError: the noise or the clipping norm is not.
    """
    finite = _is_finite(optimizer)
    if workers(optimizer) > 1:
        finite = not on_any_rank(optimizer, not finite)
    if finite:
        return
    noise(float(optimizer.noise_multiplier))
    real("max_grad_norm", float(optimizer.max_grad_norm), 0.0, math.inf, above=True)
    raise UnsupportedTrainingError(
        "The noisy sum is not finite: the gradient of a record has a NaN or an infinity, which clipping does not bound "
        "and noise does not hide. Nothing was charged, and the parameters have not moved. Find the record, or keep its "
        "loss finite: check the data before the training, each record by itself."
    )


def _is_finite(optimizer: DPOptimizer) -> bool:
    """Return whether all gradients are finite, with FSDP those of this rank's shards."""
    gradients = [
        gradient
        for group in optimizer.param_groups
        for each in group["params"]
        if each.requires_grad and (gradient := each.grad) is not None
    ]
    if type(optimizer) is FSDPOptimizerFastGradientClipping:
        gradients = [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]
    if all(gradient.is_cpu for gradient in gradients):
        total = sum(gradient.sum().item() for gradient in gradients)
    else:  # an accelerator is waited for once, not for each parameter
        total = get_total_norm(gradients).item()
    # The total of finite numbers may overflow, in half precision.
    return math.isfinite(total) or all(bool(gradient.isfinite().all()) for gradient in gradients)


def publish_fixed_fraction(optimizer: AdaClipDPOptimizer) -> None:
    """Make an AdaClipDPOptimizer's published fraction match its accounting.

    Opacus divides the noisy count of unclipped gradients by the batch size, which Poisson sampling makes private: the
    quotient moves by up to a whole record, where Theorem 1 of Andrew et al. counts half of one. Here the count of b -
    1/2 is divided by the expected size, and 1/2 added, which publishes the noisy count alone.

    Args:
        optimizer: after its noise, before its clipping norm moves.

    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (arXiv 1905.03871), section 2.2 and Theorem 1.
    """
    expected = optimizer.expected_batch_size
    optimizer.unclipped_num = optimizer.unclipped_num + (expected - optimizer.sample_size) / 2
    optimizer.sample_size = expected


@functools.lru_cache
def _gaussian(noise_multiplier: float) -> Event:
    """Return the same event in every step with the same noise, which nothing changes."""
    return gaussian(noise_multiplier)


def _per_layer(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Read a step whose layers have their own norms; the noise follows `max_grad_norm`, which schedulers move."""
    together = math.hypot(*optimizer.max_grad_norms)
    ratio = float(optimizer.max_grad_norm) / together
    # Opacus computes the norm in single precision.
    return gaussian(optimizer.noise_multiplier * (1.0 if math.isclose(ratio, 1.0, rel_tol=1e-6) else ratio))


def _adaptive(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Read a step whose gradients have more noise, such that with the count it is `noise_multiplier`."""
    if optimizer.expected_batch_size is None:
        raise UnsupportedTrainingError("Adaptive clipping needs expected_batch_size: the actual size is private.")
    if optimizer.secure_mode:
        raise UnsupportedTrainingError(
            "In secure mode Opacus' adaptive clipping still draws the noise of its count as a single value, whose last "
            "digits may show the count, where that of gradients is the sum of four: use clipping='flat'."
        )
    return adaptive_clipping(optimizer.noise_multiplier)


def _ghost(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Read a step clipped by the module; the guard has checked that both norms agree."""
    if hasattr(optimizer, "_adjusted_noise_multiplier"):
        raise UnsupportedTrainingError(
            "PrivacyEngineAdaptiveClipping divides its noise by the size of the batch, which Poisson sampling makes "
            "private, and moves the clipping norm before the step is asked for. Use clipping='adaptive' without "
            "ghost clipping."
        )
    return _gaussian(float(optimizer.noise_multiplier))


def _sharded(optimizer: Any) -> Event:  # noqa: ANN401 - mypy does not read Opacus
    """Read a step with FSDP, where the noise of all shards together is that of one process.

    With loss_reduction="sum" the noise is that of the sum, and the gradient the average: it costs less than charged.
    """
    check_sharding(optimizer)
    return _ghost(optimizer)
