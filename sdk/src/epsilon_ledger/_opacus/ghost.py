"""Ghost clipping, where the module clips: what it clipped, to which norm, and whether that is what is released."""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn
from torch.autograd.graph import get_gradient_edge

from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.sharding import check_reduction, is_sharded

_ACCUMULATION: Final = type(get_gradient_edge(torch.zeros((), requires_grad=True)).node)
"""Class of the nodes that add up the gradient of a parameter."""
_SUMS: Final = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__")


class GhostClipping:
    """Recorder of a module's ghost clipping; created by `clipping_of`.

    It replaces the module's `get_clipping_coef` and `enable_hooks`, which Opacus calls before and after the backward
    pass of the clipped losses.

    Args:
        module: a module, or Opacus' hooks of one.

    Raises:
        UnsupportedTrainingError: two of its layers share a parameter.
    """

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - a module, or Opacus' hooks of one
        require_untied(module)
        self.module = module
        self._coefficients: Callable[[], Any] = module.get_clipping_coef
        self._enable_hooks: Callable[[], None] = module.enable_hooks
        self._sharded = is_sharded(module)
        self._layers: list[tuple[dict[str, Any], str, Any]] = [
            (layer._parameters, name, parameter)  # noqa: SLF001 - the layer's own dict, to see a replaced parameter
            for layer in module._module.modules()  # noqa: SLF001 - no public name in the hooks
            for name, parameter in layer.named_parameters(recurse=False)
            if not self._sharded  # FSDP itself replaces them
        ]
        self._used_once = _parameters_used_by_their_layer(module)
        self._last: tuple[int, float] | None = None
        self._left: dict[int, tuple[Any, int]] = {}
        module.get_clipping_coef = self.get_clipping_coef
        module.enable_hooks = self.enable_hooks
        _watch_losses()

    def get_clipping_coef(self) -> Any:  # noqa: ANN401 - a tensor
        """Return the clipping coefficients, and record their number and norm."""
        if self._sharded:
            check_reduction(self.module)
        coefficients = self._coefficients()
        self._last = len(coefficients), float(self.module.max_grad_norm)
        return coefficients

    def enable_hooks(self) -> None:
        """Enable the hooks again, and record the gradients as the backward pass of the clipped losses left them."""
        self._enable_hooks()
        if self._last is not None:
            self._left = {
                id(parameter): (gradient := parameter.grad, -1 if gradient is None else gradient._version)  # noqa: SLF001 - torch's count of changes
                for parameter in self.module.trainable_parameters
            }

    def check_loss(self, losses: torch.Tensor) -> None:
        """Require that losses depend on each parameter through the layer whose hooks measure its gradient.

        Raises:
            UnsupportedTrainingError: a parameter is used otherwise too, which no norm has in it.
        """
        if self._sharded:
            return
        for identity, uses in _uses(losses).items():
            parameter = self._used_once.get(identity)
            if parameter is not None and uses > parameter._forward_counter:  # noqa: SLF001 - Opacus' own count
                raise UnsupportedTrainingError(
                    f"The loss depends on a parameter of the shape {tuple(parameter.shape)} otherwise than through its "
                    f"layer: by a penalty on weights, or a weight that is used for two things. With ghost clipping no "
                    f"norm has that in it. Use weight_decay for a penalty, and grad_sample_mode='hooks' otherwise."
                )

    def take(self, parameters: list[Any], expected: float) -> tuple[int, float]:
        """Consume the record of the last backward pass: the number of records and the norm.

        Args:
            parameters: that the optimizer is about to move.
            expected: norm of the noise.

        Raises:
            UnsupportedTrainingError: nothing was clipped, or not to this norm, or not all that the gradients hold.
        """
        last, self._last = self._last, None
        left, self._left = self._left, {}
        if last is None:
            raise UnsupportedTrainingError(
                "No gradient was clipped for this step: no backward pass was made since the last one, or of another "
                "loss. With ghost clipping the loss must come from the criterion that make_private returned, and one "
                "backward pass goes with one step."
            )
        if last[1] != float(expected):
            raise UnsupportedTrainingError(
                f"The optimizer's clipping norm is {float(expected)}, but with ghost clipping it is the module that "
                f"clips, and it did so to {last[1]}: the noise would not fit. Keep both norms equal, or use "
                f"grad_sample_mode='hooks'."
            )
        for parameter in parameters:
            _require_clipped(parameter, left.get(id(parameter)))
        for own, name, parameter in self._layers:
            if own.get(name) is not parameter:
                require_untied(self.module)
                break
        return last

    def wipe(self) -> None:
        """Delete the norms of the last batch's records."""
        self._last, self._left = None, {}
        self.module._per_sample_gradient_norms = None  # noqa: SLF001 - its setter's name; the getter raises then
        for part in self.module._module.modules() if self._sharded else ():  # noqa: SLF001 - no public name in the hooks
            if hasattr(part, "norm_sample"):
                del part.norm_sample


def clipping_of(module: Any) -> GhostClipping:  # noqa: ANN401 - a module, or Opacus' hooks of one
    """Return the clipping recorder of a module, created if needed."""
    return _present_clipping(module) or GhostClipping(module)


def require_untied(module: Any) -> None:  # noqa: ANN401 - a module, or Opacus' hooks of one
    """Require that no two layers share a trainable parameter: of both norms ghost clipping keeps the last one.

    Raises:
        UnsupportedTrainingError: two layers share one.
    """
    names: dict[int, str] = {}
    for name, parameter in module._module.named_parameters(remove_duplicate=False):  # noqa: SLF001 - as above
        other = names.setdefault(id(parameter), name)
        if other != name and parameter.requires_grad:
            raise UnsupportedTrainingError(
                f"{other} and {name} are one parameter, and ghost clipping measures one use of it only. Give each "
                f"layer its own, or use grad_sample_mode='hooks'."
            )


def _require_clipped(parameter: nn.Parameter, left: tuple[Any, int] | None) -> None:
    """Require a gradient that is as the backward pass of the clipped losses left it."""
    if left is None:
        raise UnsupportedTrainingError(
            f"The optimizer would move a parameter of the shape {tuple(parameter.shape)} that ghost clipping does not "
            f"measure: it was unfrozen or added after make_private. Unfreeze and add all of them before make_private."
        )
    gradient, version = left
    if parameter.grad is not gradient or (gradient is not None and gradient._version != version):  # noqa: SLF001 - as above
        raise UnsupportedTrainingError(
            "The gradients are not as the criterion's backward pass left them: another backward pass, a gradient clip "
            "or zero_grad() came between it and the step. What was added was not clipped. Let optimizer.step() follow "
            "loss.backward(), with one loss, from the criterion that make_private returned."
        )


def _parameters_used_by_their_layer(module: Any) -> dict[int, Any]:  # noqa: ANN401 - as above
    """Return by identity the parameters of layers that use each of them once in a forward pass: all Opacus' rules."""
    if module.force_functorch:
        return {}
    return {
        id(parameter): parameter
        for layer in module._module.modules()  # noqa: SLF001 - as above
        if type(layer) in module.GRAD_SAMPLERS
        for parameter in layer.parameters(recurse=False)
        if hasattr(parameter, "_forward_counter")  # Opacus', of those that were trainable
    }


def _uses(losses: torch.Tensor) -> dict[int, int]:
    """Count the uses of each parameter, by identity, in the graph of a backward pass."""
    found: dict[int, int] = {}
    pending = [losses.grad_fn]
    seen = {None, *pending}
    while pending:
        node = pending.pop()
        for following, _ in () if node is None else node.next_functions:
            # By its class: each attribute that a node lacks would cost an error.
            if type(following) is _ACCUMULATION:
                identity = id(following.variable)
                found[identity] = found.get(identity, 0) + 1
            elif following not in seen:
                seen.add(following)
                pending.append(following)
    return found


def _present_clipping(module: Any) -> GhostClipping | None:  # noqa: ANN401 - as above
    present = getattr(module.get_clipping_coef, "__self__", None)
    return present if isinstance(present, GhostClipping) else None


@functools.cache
def _watch_losses() -> None:
    """Let losses of recorded modules refuse what is not clipped; others are as before."""
    for name in _SUMS:
        setattr(DPTensorFastGradientClipping, name, _guarded_sum(getattr(DPTensorFastGradientClipping, name)))
    plain: Callable[..., None] = DPTensorFastGradientClipping.backward

    @functools.wraps(plain)
    def backward(loss: Any, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - Opacus' own signature
        clipping = _present_clipping(loss.module)
        if clipping is not None:
            clipping.check_loss(loss.loss_per_sample)
        plain(loss, *arguments, **named)

    DPTensorFastGradientClipping.backward = backward


def _guarded_sum(plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(plain)
    def combine(loss: Any, other: Any) -> Any:  # noqa: ANN401 - as above
        if isinstance(other, torch.Tensor) and other.requires_grad and _present_clipping(loss.module) is not None:
            raise UnsupportedTrainingError(
                "The criterion's loss was combined with a tensor that needs gradients: its part of the gradient is of "
                "no record, and is not clipped. Let the criterion compute the whole loss of each record."
            )
        return plain(loss, other)

    return combine
