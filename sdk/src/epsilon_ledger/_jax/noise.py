"""Noise of Optax's and jax-privacy's transformations, read from what they will really add.

Neither library keeps the noise in a public attribute: it is a variable of the function that adds it. What is not found
there is refused.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._wire.coercion import real

_CHAIN: Final = ("optax", "chain.<locals>.update_fn")
_EXTRA: Final = ("optax", "with_extra_args_support.<locals>.update")
_OPTAX: Final = ("optax", "differentially_private_aggregate.<locals>.update_fn")
_JAX_PRIVACY: Final = ("jax_privacy", "_streaming_matrix_factorization_privatizer.<locals>.update")
_CLIPPED: Final = ("jax_privacy", "clipped_fun.<locals>.clipped_fn")
_IDENTITY: Final = ("jax_privacy", "identity.<locals>.<lambda>")


@dataclass(frozen=True)
class Noise:
    """What a transformation adds to a sum of clipped gradients.

    Args:
        multiplier: standard deviation over the norm to which each gradient is clipped.
        key: with which its state begins; None if it is not known.
        divides_by_batch: whether it divides the noise by the actual number of examples.
    """

    multiplier: float
    key: Any = None
    divides_by_batch: bool = False


def read_noise(transformation: Any, clipped_grad: Any) -> Noise:  # noqa: ANN401 - mypy reads neither library
    """Read the noise of an Optax transformation.

    Args:
        transformation: Optax's `differentially_private_aggregate` or `dpsgd`, jax-privacy's `gaussian_privatizer`, or a
            chain that begins with one of them.
        clipped_grad: from `jax_privacy.clipped_grad`, for a privatizer; otherwise None.

    Raises:
        UnsupportedTrainingError: the noise is not known.
        TypeError: it is no transformation.
        ValueError: the clipping norm is out of its bounds.
    """
    if not callable(getattr(transformation, "update", None)):
        raise TypeError(f"noise must be a transformation of Optax or jax-privacy, or a plan, not {transformation!r}.")
    found = _first(transformation)
    origin, variables = _origin(found.update), _variables(found.update)
    if origin == _OPTAX:
        if clipped_grad is not None:
            raise UnsupportedTrainingError(
                "Optax's transformation clips by itself, to its own norm: leave clipped_grad out, and let it have the "
                "gradient of each example."
            )
        multiplier = _number(variables["noise_std"]) / _norm(variables["l2_norm_clip"])
        return Noise(multiplier, _variables(found.init).get("key"), divides_by_batch=True)
    if origin == _JAX_PRIVACY:
        if _origin(variables["noising_matrix"].multiply_next) != _IDENTITY:
            raise UnsupportedTrainingError(
                "The noise of this privatizer is correlated from step to step, so that its steps cannot be charged one "
                "by one. Charge the whole training at once, with the event of its plan."
            )
        return Noise(_number(variables["stddev"]) / norm_bound(clipped_grad), _variables(found.init).get("prng_key"))
    raise UnsupportedTrainingError(
        f"The noise of {'.'.join(origin)} is not known here. Give noise=... optax.contrib.dpsgd, "
        f"optax.contrib.differentially_private_aggregate or jax_privacy.noise_addition.gaussian_privatizer, or an "
        f"optax.chain that begins with it. Or give event=..., the event of a step."
    )


def read_plan(plan: Any) -> Noise:  # noqa: ANN401 - as above
    """Read the noise of jax-privacy's execution plan, and compare it with the event of the plan.

    Raises:
        UnsupportedTrainingError: its steps cannot be charged one by one, or have less noise than its event says.
    """
    from epsilon_ledger.dp_accounting import from_dp_accounting  # noqa: PLC0415 - jax-privacy needs dp_accounting too

    steps = plan.dp_event
    selection = plan.batch_selection_strategy
    plain = getattr(selection, "cycle_length", 0) == 1 and selection.truncated_batch_size is None
    if not plain or getattr(steps, "count", None) != selection.iterations:
        raise UnsupportedTrainingError(
            "The noise of this plan is correlated from step to step, or its batches are not Poisson samples of all "
            "records, so that its steps cannot be charged one by one. Charge the whole training at once, with "
            "plan.dp_event and run.charge_training; but not with column_normalize=True, unless the strategy has a norm "
            "of 1 or more: the noise would be less than the event says."
        )
    found = _first(plan.noise_addition_transform)
    variables = _variables(found.update)
    multiplier = _number(variables["stddev"]) * _only_factor(variables["noising_matrix"])
    multiplier /= norm_bound(plan.clipped_grad(lambda: None))
    said: Any = from_dp_accounting(steps.event)
    least = said.get("event", said)["noise_multiplier"]
    if multiplier < least * (1 - 1e-6):
        raise UnsupportedTrainingError(
            f"The plan's event says that the noise multiplier is {least:g}, but its noise is {multiplier:g} clipping "
            f"norms. jax-privacy does not divide by the norm of the columns with column_normalize=True: give a "
            f"strategy whose norm is 1, or leave column_normalize out."
        )
    return Noise(multiplier, _variables(found.init).get("prng_key"))


def norm_bound(clipped_grad: Any) -> float:  # noqa: ANN401 - as above
    """Read the norm to which `jax_privacy.clipped_grad` clips, after its division.

    Raises:
        UnsupportedTrainingError: it is another function, or its gradients may be NaN.
    """
    bound = getattr(clipped_grad, "l2_norm_bound", None)
    if bound is None:
        raise UnsupportedTrainingError(
            "A privatizer's stddev alone says nothing: give clipped_grad=..., what jax_privacy.clipped_grad returned, "
            "whose gradients it is for."
        )
    function = clipped_grad.fun
    while _origin(function) != _CLIPPED:
        function = _variables(function).get("fun")
        if not inspect.isfunction(function):
            raise UnsupportedTrainingError("How clipped_grad clips is not known here: give event=...")
    if not _variables(function)["nan_safe"]:
        raise UnsupportedTrainingError(
            "With nan_safe=False one record with an infinite gradient makes the whole sum NaN, which tells that the "
            "record is there. Leave nan_safe out."
        )
    return _norm(bound)


@dataclass(frozen=True)
class _Functions:
    """The functions of a transformation; `init` is the one of a chain if the part's own is not known."""

    init: Callable[..., Any]
    update: Callable[..., Any]


def _first(transformation: Any) -> _Functions:  # noqa: ANN401 - as above
    """Find the part of a transformation that gets the gradients first; what follows it sees noise only."""
    found = _Functions(transformation.init, transformation.update)
    while True:
        origin = _origin(found.update)
        if origin == _CHAIN:
            found = _Functions(_variables(found.init)["init_fns"][0], _variables(found.update)["update_fns"][0])
        elif origin == _EXTRA:
            inner = _variables(found.update)["tx"]
            found = _Functions(inner.init, inner.update)
        else:
            return found


def _only_factor(matrix: Any) -> float:  # noqa: ANN401 - as above
    """Find the factor of a matrix that multiplies each step's noise by one number.

    Raises:
        UnsupportedTrainingError: a step's noise depends on earlier ones.
    """
    state = matrix.init_multiply(np.float32(0.0))
    answers = []
    for value in (1.0, 0.0, 1.0):
        answer, state = matrix.multiply_next(np.float32(value), state)
        answers.append(float(answer))
    if answers[1] or answers[2] != answers[0]:
        raise UnsupportedTrainingError("The noise of this plan is correlated from step to step.")
    return answers[0]


def _origin(function: Any) -> tuple[str, str]:  # noqa: ANN401 - a function, or what stands in its place
    """Return the package and the qualified name of a function; where in a package it is defined may change."""
    module = getattr(function, "__module__", None) or "?"
    return module.partition(".")[0], getattr(function, "__qualname__", type(function).__name__)


def _variables(function: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}


def _norm(value: Any) -> float:  # noqa: ANN401 - as below
    """Return a clipping norm, which neither library checks."""
    return real("The clipping norm", _number(value), 0.0, math.inf, above=True)


def _number(value: Any) -> float:  # noqa: ANN401 - a number or an array of one
    try:
        return float(value)
    except Exception as error:
        raise UnsupportedTrainingError(
            f"The noise or the norm is {value!r}, no number: make the transformation outside of jit, once, with "
            f"constants. Noise that changes from step to step is charged by the run's schedule=..."
        ) from error
