"""What a step may move: parameters whose gradients are clipped and noisy, and which are exact enough for noise."""

import math
from contextlib import suppress
from typing import Any, Final

import torch
from opacus.optimizers import DPOptimizer

from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._wire.coercion import real

_SINGLE_PRECISION: Final = torch.finfo(torch.float32).bits
_EXACT: Final = frozenset({torch.float32, torch.float64})


def is_too_coarse(parameter: torch.Tensor) -> bool:
    """Return whether a parameter is coarser than float32: its values show which sums were possible under the noise."""
    return bool(torch.finfo(parameter.dtype).bits < _SINGLE_PRECISION)


def private_parameters(optimizer: DPOptimizer) -> list[Any]:
    """Return the parameters to which an optimizer adds noise.

    Args:
        optimizer: before its step.

    Raises:
        UnsupportedTrainingError: it would move another parameter, or one is too coarse.
    """
    private = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                if parameter.dtype not in _EXACT:
                    require_exact(parameter)
                private.append(parameter)
            elif parameter.grad is not None and bool(parameter.grad.any()):
                raise UnsupportedTrainingError(
                    f"A frozen parameter of the shape {tuple(parameter.shape)} has a gradient, which the optimizer "
                    f"would apply without clipping and noise. Freeze before the backward pass, after zero_grad()."
                )
    return private


def require_exact(parameter: torch.Tensor) -> None:
    """Require that a parameter is float32 or finer.

    Raises:
        UnsupportedTrainingError: it is coarser.
    """
    if is_too_coarse(parameter):
        raise UnsupportedTrainingError(
            f"A parameter of the shape {tuple(parameter.shape)} is {parameter.dtype}, too coarse for the noise: its "
            f"values show which sums were possible. Train float32 parameters, under torch.autocast if need be."
        )


def clipping_norm(optimizer: DPOptimizer) -> float | tuple[float, ...]:
    """Return the norm, or the norm of each layer, to which an optimizer is to clip.

    Raises:
        ValueError: it is not in (0, inf).
    """
    norms = getattr(optimizer, "max_grad_norms", None)
    for norm in norms or (optimizer.max_grad_norm,):
        if not 0.0 < norm < math.inf:
            real("max_grad_norm", float(norm), 0.0, math.inf, above=True)
    return float(optimizer.max_grad_norm) if norms is None else tuple(norms)


def refuse_scaler(optimizer: DPOptimizer) -> None:
    """Refuse a step by torch's GradScaler, which sets what it has found in the gradients.

    Raises:
        UnsupportedTrainingError: a scaler takes this step.
    """
    if hasattr(optimizer, "found_inf"):
        for name in ("found_inf", "grad_scale"):
            with suppress(AttributeError):
                delattr(optimizer, name)
        raise UnsupportedTrainingError(
            "torch.amp.GradScaler leaves out steps by what is in the data, and its loss scale shows where. Train "
            "without it: in float32, or under torch.autocast with bfloat16, which needs no loss scale."
        )


def rows_of(parameters: list[Any]) -> int:
    """Return the number of records of which each parameter has gradients.

    Raises:
        UnsupportedTrainingError: there are none, or of a part of the parameters, or of several batches.
    """
    rows: int | None = None
    lacking = None
    for parameter in parameters:
        samples = getattr(parameter, "grad_sample", None)
        if isinstance(samples, list):
            raise UnsupportedTrainingError(
                f"{len(samples)} batches were accumulated for one step: a record may be in "
                f"several of them, which its clipping norm does not bound. Use a larger batch, and Opacus' "
                f"BatchMemoryManager if it does not fit into memory."
            )
        if samples is None:
            lacking = parameter
        elif not rows:
            rows = samples.shape[0]
    if rows is None:
        raise UnsupportedTrainingError(
            "There is no gradient for this step: no backward pass was made since the last step or zero_grad(), or the "
            "module was in evaluation mode. Call loss.backward() in training mode, and then optimizer.step()."
        )
    if lacking is not None:
        raise UnsupportedTrainingError(
            f"A parameter of the shape {tuple(lacking.shape)} has no gradients of single records: it was unfrozen or "
            f"added after make_private, or the loss does not use it. Unfreeze and add before make_private, and leave "
            f"unused parameters frozen."
        )
    return rows
