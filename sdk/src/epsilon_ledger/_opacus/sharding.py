"""FSDP: each parameter's noisy sum exists once, divided among all ranks."""

from collections.abc import Iterator
from typing import Any

from opacus.optimizers import FSDPOptimizerFastGradientClipping
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from epsilon_ledger._opacus.errors import UnsupportedTrainingError


def check_sharding(optimizer: FSDPOptimizerFastGradientClipping) -> None:
    """Require that each parameter is sharded over all ranks.

    Opacus divides the noise by their number, as FSDP divides the gradient. A parameter that several ranks have whole
    would have too little noise, or several sums with different noise.

    Args:
        optimizer: which adds noise to each rank's shard.

    Raises:
        UnsupportedTrainingError: a parameter is replicated, or sharded over a part of the ranks.
    """
    for parameter in optimizer.params:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        whole = mesh is None or mesh.ndim > 1 or not parameter.placements[0].is_shard()
        if whole or mesh is None or mesh.size() != optimizer.world_size:
            raise UnsupportedTrainingError(
                f"A parameter is not sharded over all {optimizer.world_size} ranks, and Opacus' optimizer adds too "
                f"little noise to any other, or releases it several times. Use Opacus' FSDP2Wrapper, or fully_shard of "
                f"the whole model, with a mesh of one dimension over all ranks."
            )


def check_reduction(module: Any) -> None:  # noqa: ANN401 - a module, or Opacus' hooks of one
    """Require that FSDP averages each backward pass over the ranks at once.

    Opacus' noise is made for the average; and what is not reduced now would be added to a later batch, unclipped.

    Args:
        module: that clips.

    Raises:
        UnsupportedTrainingError: a divisor of its own is set, or the reduction is put off.
    """
    for group in _parameter_groups(module):
        if group.gradient_divide_factor is not None:
            raise UnsupportedTrainingError(
                "set_gradient_divide_factor changes the sum but not its noise, which Opacus makes for the average over "
                "the ranks: leave it at its default."
            )
        if not group.reduce_grads:
            raise UnsupportedTrainingError(
                "With set_requires_gradient_sync(False) a batch's gradient is added to the next one without clipping: "
                "let FSDP reduce each backward pass, and use a BatchMemoryManager for large batches."
            )


def is_sharded(module: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether a module that clips has parts that FSDP shards."""
    return any(isinstance(part, FSDPModule) for part in _wrapped(module).modules())


def _parameter_groups(module: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    for part in _wrapped(module).modules():
        if isinstance(part, FSDPModule):
            group = part._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - nothing public tells
            if group is not None:
                yield group


def _wrapped(module: Any) -> nn.Module:  # noqa: ANN401 - as above
    """Return the module of Opacus' wrapper or hooks."""
    wrapped: nn.Module = module._module  # noqa: SLF001 - no public name in the hooks
    return wrapped
