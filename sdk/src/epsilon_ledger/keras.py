"""Keras 3 adapter: each step of `fit` is authorized before it is taken, and a refusal ends `fit` without an exception.

    model = keras_api.make_private(model, config)   # jax-privacy, on the JAX backend
    charge = attach(model, run)
    model.fit(x, y, batch_size=config.batch_size, epochs=10)

On the backends JAX and torch, also for a model whose own `train_step` adds the noise: `attach(model, run, event=...)`.
Needs `pip install "epsilon-ledger-client[keras]"`.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, Literal

import keras

from epsilon_ledger import BudgetExceededError, Event, Run, Trial
from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._keras.private import event_reader, renew_noise, renew_sampling, weight
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._wire.coercion import one_of

__all__ = ["LedgerCallback", "UnsupportedTrainingError", "attach"]

_BACKENDS: Final = ("jax", "torch")


def attach(
    model: keras.Model,
    run: Run | Trial,
    *,
    event: Event | None = None,
    sampling_probability: float | None = None,
    earlier_steps: Literal["refuse", "charged"] = "refuse",
) -> "LedgerCallback":
    """Authorize every step of a model's `fit` and `train_on_batch`.

    The event of a model from jax-privacy's `make_private` is read from its configuration. Its samples get a new secret
    seed at each `fit`, and its noise a new key at each step: one that is used again draws the same samples and noise.

    Args:
        model: to charge; private already.
        run: to charge.
        event: of each step, with its sampling, for a model whose own `train_step` adds the noise; the caller guarantees
            both.
        sampling_probability: 1.0 charges each step as if it saw all the data, for batches of a fixed size whose
            neighbours have the same size.
        earlier_steps: for steps that the model took before, of which the run knows nothing: "refuse" to train, or treat
            them as "charged" elsewhere.

    Returns:
        The callback that each `fit` gets; its `refusal` says why the last one ended early.

    Raises:
        UnsupportedTrainingError: the cost of the steps is unknown, for instance without Poisson samples.
        ValueError: the arguments do not fit together, or the model is charged to another run.
        TypeError: the run is an AsyncRun, or no run.
    """
    if keras.backend.backend() not in _BACKENDS:
        raise UnsupportedTrainingError(
            f"The Keras backend is {keras.backend.backend()!r}: set KERAS_BACKEND to 'jax' or 'torch'."
        )
    if keras.backend.backend() == "jax":
        # The torch backend needs no JAX.
        from epsilon_ledger._jax.arguments import require_one_process  # noqa: PLC0415

        require_one_process()
    require_blocking_run(run)
    if sampling_probability not in (None, 1.0):
        raise ValueError(
            f"sampling_probability can only be 1.0, for no sampling, not {sampling_probability}: batches that fit "
            f"takes from elsewhere have a fixed size, so that they are no Poisson samples."
        )
    one_of("earlier_steps", earlier_steps, ("refuse", "charged"))
    if event is not None and sampling_probability is not None:
        raise ValueError("Give event or sampling_probability: an event has its sampling.")
    present = getattr(model, "_ledger_callback", None)
    if present is not None:
        if present.run.id != run.id:
            raise ValueError(f"This model is charged to {present.run.id}: one run pays for a step.")
        return present  # type: ignore[no-any-return] # an attribute of a Keras model
    callback = LedgerCallback(model, run, event_reader(model, run, event, sampling_probability), earlier_steps)
    model._ledger_callback = callback  # noqa: SLF001 - our own
    model.make_train_function = functools.partial(_make_guarded, model.make_train_function, callback)
    model.fit = types.MethodType(_charged_fit(model.fit, callback), model)
    return callback


class LedgerCallback(keras.callbacks.Callback):
    """Callback that `attach` adds to each `fit`: it asks before each step, and logs `epsilon`.

    Args:
        model: that is trained.
        run: to charge.
        read: returns the event of a step.
        earlier_steps: as for `attach`.
    """

    def __init__(self, model: keras.Model, run: Run | Trial, read: Callable[[], Event], earlier_steps: str) -> None:
        super().__init__()
        self.run = run
        self.trained = model
        """The model. Reading `model` of a callback moves the state of a step on its way back into the variables."""
        self.refusal: BudgetExceededError | None = None
        """The refusal that ended the last fit, or None."""
        self.private = hasattr(model, "_dp_params")
        """Whether the model is jax-privacy's."""
        self.logs: Any = {}
        """Logs of the epoch's last step."""
        self.fitting = False
        """Whether `fit` is running, which ends at a refusal."""
        self._drawn = False
        self._read = read
        self._earlier_steps = earlier_steps

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - Keras' signature
        """Tell the run the number of all steps."""
        self.refusal = None
        params = self.params or {}  # none in a CallbackList of the caller
        steps, epochs = params.get("steps"), params.get("epochs")
        if isinstance(self.run, Run) and self.run.expected_steps is None and steps and epochs:
            self.run.expected_steps = self.run.next_step + steps * epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as above
        """Forget the logs of the last epoch."""
        self.logs = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as above
        """Note that the next batches are a sample of the fit."""
        self._drawn = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as above
        """Log the epsilon and the used share."""
        if logs is not None:
            logs |= {"epsilon": self.run.epsilon, "used": self.run.used}

    def read(self) -> Event:
        """Read the event of a step.

        Raises:
            UnsupportedTrainingError: the model took steps that were not charged.
        """
        if self.private and self._earlier_steps != "charged":
            taken = int(weight(self.trained, "_optimizer_steps").numpy().item())
            if taken > self.run.next_step:
                raise UnsupportedTrainingError(
                    f"The model took {taken} steps, and the run was asked for {self.run.next_step}. Attach before the "
                    f"first fit. If the others were charged to another run, give earlier_steps='charged'; else report "
                    f"them with run.report(count, event=...)."
                )
        return self._read()

    def admit(self, steps: int, event: Event) -> bool:
        """Authorize steps.

        Returns:
            Whether they may be taken; if not, the fit ends.

        Raises:
            UnsupportedTrainingError: it is a batch of `train_on_batch`, no Poisson sample.
            BudgetExceededError: they are refused outside of `fit`.
            LedgerError: as `Run.authorize`.
        """
        drawn, self._drawn = self.fitting and self._drawn, False
        if self.private and event["type"] == "poisson_sampled" and not drawn:
            raise UnsupportedTrainingError(
                "train_on_batch takes any batch, and jax-privacy draws its samples in fit: only those are charged here."
            )
        try:
            self.run.authorize(steps, event=event)
        except BudgetExceededError as refusal:
            if not self.fitting:
                raise
            self.refusal = refusal
            self.trained.stop_training = True
            return False
        return True


class _Guarded:
    """Training function that asks before its steps.

    Args:
        function: of Keras.
        event: of each step.
        callback: asks.
    """

    def __init__(self, function: Callable[..., Any], event: Event, callback: LedgerCallback) -> None:
        self.event = event
        self._function = function
        self._callback = callback
        self._call = self._step_jax if keras.backend.backend() == "jax" else self._step_torch

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - as Keras' backends call it
        return self._call(*arguments)

    def _step_jax(self, state: Any, iterator: Iterator[Any]) -> Any:  # noqa: ANN401 - as above
        """Take the next batches of an execution, of which the last of an epoch has fewer."""
        batches = list(islice(iterator, self._callback.trained.steps_per_execution))
        if batches:
            try:
                admitted = self._callback.admit(len(batches), self.event)
            except BaseException:
                # The model's variables are empty while this state is on its way: fit puts it back.
                names = ("trainable", "non_trainable", "optimizer", "metrics")
                self._callback.trained._jax_state = {  # noqa: SLF001 - no public API keeps it
                    f"{name}_variables": variables for name, variables in zip(names, state, strict=True)
                }
                raise
            if not admitted:
                return self._callback.logs, state
            if self._callback.private:
                state = renew_noise(state)
        logs, state = self._function(state, iter(batches))
        self._callback.logs = logs
        return logs, state

    def _step_torch(self, data: Any) -> Any:  # noqa: ANN401 - as above
        if not self._callback.admit(1, self.event):
            return self._callback.logs
        self._callback.logs = logs = self._function(data)
        return logs


def _make_guarded(make: Callable[..., Any], callback: LedgerCallback, force: bool = False) -> None:  # noqa: FBT001, FBT002 - Keras' signature
    """Make the training function, which asks before its steps."""
    model = callback.trained
    event, function = callback.read(), model.train_function
    if force or not isinstance(function, _Guarded) or function.event != event:
        # One that is compiled already keeps the noise that it was traced with: it is traced again with what was read.
        with _new_step(model):
            make(force=True)
        model.train_function = _Guarded(model.train_function, event, callback)


@contextmanager
def _new_step(model: keras.Model) -> Iterator[None]:
    """Let a model's step be another function for a while: JAX keeps the trace of an equal one, as a bound method is."""
    own, step = vars(model).get("train_step"), model.train_step

    @functools.wraps(step)
    def train_step(*arguments: Any) -> Any:  # noqa: ANN401 - of the backend
        return step(*arguments)

    model.train_step = train_step
    try:
        yield
    finally:
        if own is None:
            del model.train_step
        else:
            model.train_step = own


def _charged_fit(fit: Callable[..., Any], callback: LedgerCallback) -> Callable[..., Any]:
    """Make a `fit` with the callback, and with samples of its own."""
    # Of the class: that of jax-privacy's wrapper lacks its first parameter.
    signature = inspect.signature(types.MethodType(type(callback.trained).fit, callback.trained))

    @functools.wraps(fit)
    def charged_fit(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Keras' fit
        given = dict(signature.bind_partial(*args, **kwargs).arguments)
        if callback.private:
            renew_sampling(model)
        callbacks = given.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.append(callback)
        else:
            # First, so that the others see its epsilon.
            others = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
            given["callbacks"] = [callback, *(other for other in others if other is not callback)]
        callback.fitting = True
        try:
            return fit(**given)
        finally:
            callback.fitting = False

    return charged_fit
