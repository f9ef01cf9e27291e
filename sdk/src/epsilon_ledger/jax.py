"""JAX adapter: each call of a training step is authorized before it is dispatched, outside of jit.

    step = authorized(step, run, noise=privatizer, clipped_grad=grad_fn, batches=strategy)  # a jitted step
    for indices in step.batch_iterator(len(data)):
        params, opt_state, noise_state = step(params, opt_state, noise_state, data[indices])

The step raises the errors of `run.authorize`, such as BudgetExceededError. It is not called then, no argument is
donated, and nothing has changed. Needs `pip install "epsilon-ledger-client[jax]"`.

One draw covers one release: step each batch once, before the next is drawn. Each call gets a fresh key for its noise.
"""

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Final, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import jax
import numpy as np

from epsilon_ledger import Event, Run, TrainingCharge, Trial, gaussian
from epsilon_ledger._jax.arguments import ShapeWatch, require_one_process
from epsilon_ledger._jax.errors import UnsupportedTrainingError
from epsilon_ledger._jax.keys import NoiseKeys
from epsilon_ledger._jax.noise import Noise, read_noise, read_plan
from epsilon_ledger._jax.sampling import Batches, read_batches
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._wire.coercion import whole

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.10
    from jax.core import get_opaque_trace_state

__all__ = ["AuthorizedStep", "UnsupportedTrainingError", "authorized", "secret_key"]

P = ParamSpec("P")
T = TypeVar("T")

_OUTSIDE: Final = get_opaque_trace_state()
_WITH_DRAWN: Final[WeakKeyDictionary[Any, set[Any]]] = WeakKeyDictionary()
"""Steps of a run that have drawn batches and not taken them."""


def secret_key() -> Any:  # noqa: ANN401 - a key of JAX
    """Make a PRNG key from the operating system's entropy, of 64 bits.

    For noise that `authorized` does not renew: the one of a whole training, or your own. Seeds of Optax's and
    jax-privacy's transformations have 32 bits at most, and a seed in a program repeats its noise after a restart.

    Returns:
        A typed key, for `key=` or `prng_key=` of a transformation.
    """
    return jax.random.wrap_key_data(np.frombuffer(os.urandom(8), np.uint32), impl="threefry2x32")


def authorized(
    step: Callable[P, T],
    run: Run | Trial | TrainingCharge,
    *,
    noise: Any = None,  # noqa: ANN401 - mypy reads neither Optax nor jax-privacy
    clipped_grad: Any = None,  # noqa: ANN401 - as above
    batches: Any = None,  # noqa: ANN401 - as above
    event: Event | None = None,
    steps_per_call: int = 1,
) -> "AuthorizedStep[P, T]":
    """Authorize each call of a training step.

    Wrap the function that adds the noise, outside of all transformations: `authorized(jax.jit(step), run, ...)`. The
    event is read from what the step uses, or given; without both, the run's schedule or event is charged. The charge of
    a whole training, for correlated noise, counts each call as `steps_per_call` of its steps, and charges nothing more.

    Args:
        step: function of one release, jitted or compiled; it may donate its arguments.
        run: to charge; or a charge from `run.charge_training`, which covers noise and batches: give it alone.
        noise: transformation that adds the noise: Optax's `dpsgd` or `differentially_private_aggregate`, jax-privacy's
            `gaussian_privatizer`, or a chain that begins with one of them; or jax-privacy's execution plan, which has
            all else. The step takes its state and returns it.
        clipped_grad: from `jax_privacy.clipped_grad`, with a privatizer.
        batches: Poisson sampling probability, or jax-privacy's selection strategy, with `noise`.
        event: of each step, with its sampling, instead of what is read; the caller then guarantees both.
        steps_per_call: releases of a call, such as the length of a `jax.lax.scan` over steps.

    Returns:
        The step, with the same arguments and results.

    Raises:
        UnsupportedTrainingError: the cost of a step is not known.
        ValueError: the arguments do not fit together.
        TypeError: the run is an AsyncRun or no run, or the step is no function.
    """
    whole("steps_per_call", steps_per_call)
    if not callable(step):
        raise TypeError(f"step is {step!r}, but it must be a function: authorized(jax.jit(step), run, ...).")
    require_one_process()
    if isinstance(run, TrainingCharge):
        if any(given is not None for given in (noise, clipped_grad, batches, event)):
            raise ValueError(
                "A charge covers the noise and the batches of its whole training: leave noise, clipped_grad, batches "
                "and event out."
            )
        return AuthorizedStep(step, run, None, None, None, steps_per_call)
    require_blocking_run(run)
    if noise is None:
        if clipped_grad is not None or batches is not None:
            raise ValueError("clipped_grad and batches go with noise=..., from which the event is read.")
        return AuthorizedStep(step, run, event, None, None, steps_per_call)
    if event is not None:
        raise ValueError("Give noise or event: one is read, the other is your word.")
    if hasattr(noise, "noise_addition_transform"):
        if clipped_grad is not None or batches is not None:
            raise ValueError("An execution plan has its own clipped_grad and batches: give the plan alone.")
        found, batches = read_plan(noise), noise.batch_selection_strategy
    else:
        found = read_noise(noise, clipped_grad)
    if batches is None:
        raise UnsupportedTrainingError(
            "How are records drawn? Give batches=... the Poisson sampling probability, or a strategy of jax-privacy, "
            "and take the batches from the step's batch_iterator. Shuffled batches of a fixed size are no Poisson "
            "samples: give event=... what a step of them costs."
        )
    return AuthorizedStep(step, run, None, found, read_batches(batches), steps_per_call)


class AuthorizedStep(Generic[P, T]):
    """A training step that asks before each call; made by `authorized`.

    Args:
        step: function of `steps_per_call` releases.
        run: to charge, or the charge of a whole training.
        event: of each step; None: from the noise and the batches, or the run's own.
        noise: of a step, or None.
        batches: from which each step takes one, or None.
        steps_per_call: releases of a call.
    """

    def __init__(
        self,
        step: Callable[P, T],
        run: Run | Trial | TrainingCharge,
        event: Event | None,
        noise: Noise | None,
        batches: Batches | None,
        steps_per_call: int,
    ) -> None:
        functools.update_wrapper(self, step)
        self.run = run
        self.event = event
        """Event of each step; None before the first batch, or if the run knows it."""
        self._step = step
        self._batches = batches
        self._steps = steps_per_call
        self._mechanism = None if noise is None else gaussian(noise.multiplier)
        self._keys = None if noise is None else NoiseKeys(noise, steps_per_call)
        self._shapes = ShapeWatch() if noise is not None and noise.divides_by_batch else None
        self._drawn = 0
        self._with_drawn: set[Any] = set() if batches is None else _WITH_DRAWN.setdefault(run, set())
        # A further step of the run may begin because of what was drawn.
        self._others = tuple(self._with_drawn)
        self._warned = False
        self._lock = Lock()

    def batch_iterator(self, num_examples: Any, rng: None = None) -> Iterator[Any]:  # noqa: ANN401 - jax-privacy's
        """Draw the batches of the steps, from the operating system's entropy.

        Step each batch before you draw the next: if the data decided which batches are stepped, the number of steps
        would tell about the data. An iteration that is left early may leave one call's batches, which are charged when
        the next one begins.

        Nothing that is released depends on the number of records here: a Poisson sample has no fixed size, and samples
        without replacement, whose event has that number, are charged under `replace_one`, where it is public. What the
        caller derives from it is released: under `add_or_remove_one` take the sampling probability, the number of
        iterations, `normalize_by` and the padded size from a public size.

        Args:
            num_examples: number of records; with a UserSelectionStrategy, the user of each record.
            rng: None. A generator of the caller would draw the same batches in another process or run.

        Yields:
            Indices of the records of a batch; with jax-privacy's strategies, as they yield them.

        Raises:
            UnsupportedTrainingError: `rng` is given, or batches were drawn that no call has taken.
            ValueError: the step was made without `batches`.
            LedgerError: batches that were left are charged, as by `Run.authorize`.
        """
        batches, mechanism = self._batches, self._mechanism
        if batches is None or mechanism is None:
            raise ValueError("This step was made without batches=...: it does not know how to draw them.")
        if rng is not None:
            raise UnsupportedTrainingError(
                "A generator or seed of yours may draw the same batches in another process or run, so that they are no "
                "independent samples. Leave rng out: batches are drawn from the operating system's entropy."
            )
        event = batches.charge(mechanism, num_examples)
        for step in (*self._others, self):
            step._charge_left()  # noqa: SLF001 - of its own class
        self._others = ()
        self.event = event
        if isinstance(self.run, Run) and self.run.expected_steps is None and batches.iterations:
            self.run.expected_steps = self.run.next_step + batches.iterations
        for batch in batches.draw(num_examples):
            with self._lock:
                if self._drawn >= self._steps:
                    raise UnsupportedTrainingError(
                        f"{self._drawn} batch(es) were drawn and not stepped, and a call takes {self._steps}. Step "
                        f"each batch before you draw the next, also an empty or a large one: the number of steps must "
                        f"not depend on the data. For a scan over several steps give steps_per_call=..."
                    )
                self._count_drawn(1)
            yield batch
        self._charge_left()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Authorize the call, and make it with a fresh key for its noise.

        Raises:
            UnsupportedTrainingError: the call is traced, has no batch of its own, or its noise cannot be followed.
            LedgerError: as `Run.authorize`; the step was not called.
        """
        if get_opaque_trace_state() != _OUTSIDE:
            raise UnsupportedTrainingError(
                "This step is being traced, by jit, scan, vmap, grad or the like: it would ask once, now, and never "
                "when it runs. Wrap the outermost function instead: authorized(jax.jit(step), run, ...), with "
                "steps_per_call=... for a scan over steps."
            )
        if self._batches is not None:
            self._take_batches(self._steps)
        arguments: Any = (args, kwargs)
        try:
            if self._shapes is not None:
                self._shapes.check(arguments)
            if self._keys is not None:
                self._keys.settle(self._report)
                arguments, call = self._keys.renew(arguments)
            self._authorize(self._steps)
        except BaseException:
            self._take_batches(-self._steps)
            raise
        result = self._step(*arguments[0], **arguments[1])
        if self._keys is not None:
            self._keys.note(call, result, arguments)
        return result

    def _authorize(self, steps: int) -> None:
        if self.event is None or isinstance(self.run, TrainingCharge):
            self.run.authorize(steps)
        else:
            self.run.authorize(steps, event=self.event)

    def _report(self, steps: int) -> None:
        """Charge steps that were taken already."""
        if isinstance(self.run, Run) and self.event is not None:
            self.run.report(steps, event=self.event)
        else:
            self._authorize(steps)

    def _charge_left(self) -> None:
        """Charge batches that an iteration has left: whether it was left early may depend on the data."""
        if self._keys is not None:
            self._keys.settle(self._report, wait=True)
        left = self._drawn
        if not left:
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{left} batch(es) were drawn and not stepped before the iteration ended. They are charged, as the "
                f"number of steps must not depend on the data. End an iteration after a step.",
                stacklevel=3,
            )
        self._authorize(left)
        with self._lock:
            self._count_drawn(-left)

    def _take_batches(self, count: int) -> None:
        """Take drawn batches for a call, or give them back if it is not made."""
        with self._lock:
            if self._drawn < count:
                raise UnsupportedTrainingError(
                    f"A call takes {count} batch(es), and {self._drawn} of those drawn are left: step each batch of "
                    f"this step's batch_iterator once. A batch that is stepped twice costs more than two samples."
                )
            self._count_drawn(-count)

    def _count_drawn(self, count: int) -> None:
        had, self._drawn = self._drawn, self._drawn + count
        if bool(had) != bool(self._drawn):
            self._with_drawn.add(self) if self._drawn else self._with_drawn.discard(self)
