"""Models that jax-privacy made private: the event of their steps, and their seeds."""

import copy
import functools
import secrets
from collections.abc import Callable
from math import sqrt
from typing import Any, Final

import numpy as np

from epsilon_ledger import Event, Run, Trial, gaussian, poisson_sampled
from epsilon_ledger._jax.errors import UnsupportedTrainingError

_OWN_WEIGHTS: Final = ["_rng", "_optimizer_steps"]


def event_reader(
    model: Any,  # noqa: ANN401 - mypy does not read Keras
    run: Run | Trial,
    event: Event | None,
    sampling_probability: float | None,
) -> Callable[[], Event]:
    """Make the function that returns the event of a step, after checking the model.

    Args:
        model: of Keras.
        run: to charge.
        event: as for `attach`.
        sampling_probability: as for `attach`.

    Raises:
        UnsupportedTrainingError: the cost of a step is unknown.
        ValueError: the arguments do not fit together.
    """
    config = getattr(model, "_dp_params", None)
    if event is not None:
        if config is not None:
            raise ValueError("The event of this model is read from its DPKerasConfig: leave event out.")
        return lambda: event
    if config is None:
        raise UnsupportedTrainingError(
            "What noise this model adds is not known here: give it to jax_privacy.keras_api.make_private first. If its "
            "own train_step adds noise, give event=..., the event of a step with its sampling."
        )
    _require_private(model)
    if not config.poisson_sampling_in_fit:
        _require_unsampled(config, run, sampling_probability)
    elif sampling_probability is not None:
        raise ValueError("With poisson_sampling_in_fit the sampling is read: leave sampling_probability out.")
    return functools.partial(_private_event, model)


def _require_private(model: Any) -> None:  # noqa: ANN401 - as above
    """Require that a model's step and its first variables are still those of `make_private`."""
    from jax_privacy import keras_api  # noqa: PLC0415 - the model has imported it

    if getattr(model.train_step, "__func__", None) is not keras_api._dp_train_step:  # noqa: SLF001 - not public
        raise UnsupportedTrainingError("The train_step of this model is no more the one of make_private.")
    if [weight.name for weight in model.non_trainable_variables[:2]] != _OWN_WEIGHTS:
        raise UnsupportedTrainingError(
            "jax-privacy takes the first two non-trainable variables of a model for its own, and here they are others: "
            "call make_private once, before other variables are added."
        )


def _private_event(model: Any) -> Event:  # noqa: ANN401 - as above
    """Read the event of a step of jax-privacy.

    With gradient accumulation each batch gets its own part of the noise, and draws its own sample: each is charged.
    """
    _require_private(model)
    config = model._dp_params  # noqa: SLF001 - as above
    mechanism = gaussian(model.get_noise_multiplier() / sqrt(config.gradient_accumulation_steps))
    if not config.poisson_sampling_in_fit:
        return mechanism
    return poisson_sampled(config.batch_size / config.train_size, mechanism)


def _require_unsampled(config: Any, run: Run | Trial, sampling_probability: float | None) -> None:  # noqa: ANN401 - as above
    """Require that steps on batches of a fixed size may be charged without sampling."""
    if sampling_probability is None:
        raise UnsupportedTrainingError(
            "fit would shuffle the records into batches of a fixed size, which are no Poisson samples: their size over "
            "n is no sampling probability. Set poisson_sampling_in_fit=True in DPKerasConfig, and give fit arrays. Or, "
            "if neighbours have the same size, sampling_probability=1.0 charges each step as if it saw all the data."
        )
    if run.state.neighboring_relation == "add_or_remove_one" and config.batch_size < config.train_size:
        raise UnsupportedTrainingError(
            "Batches of a fixed size under add_or_remove_one: a record more pushes others out of their batches, and "
            "sums move by two norms. Set poisson_sampling_in_fit=True, or charge a population under replace_one or "
            "replace_special."
        )


def renew_sampling(model: Any) -> None:  # noqa: ANN401 - as above
    """Give the next fit a new seed for its samples."""
    config = copy.copy(model._dp_params)  # noqa: SLF001 - as above
    # Not dataclasses.replace, which computes the epsilon once more.
    object.__setattr__(config, "seed", secrets.randbits(63))
    model._dp_params = config  # noqa: SLF001 - as above


def renew_noise(state: Any) -> Any:  # noqa: ANN401 - as above
    """Return the state of a step with a fresh key of the noise, which is its first non-trainable variable.

    Checkpoints, `set_weights` and `load_weights` bring an earlier key back, and with it noise that was released.
    """
    trainable, (_, *others), *rest = state
    return trainable, [np.frombuffer(secrets.token_bytes(8), np.uint32), *others], *rest


def weight(model: Any, name: str) -> Any:  # noqa: ANN401 - as above
    """Return a weight of jax-privacy's by its name."""
    return next(each for each in model.non_trainable_weights if each.name == name)
