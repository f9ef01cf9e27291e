"""A monitor like MindArmour's `PrivacyMonitorFactory`, with enforcement by a ledger.

It differs where theirs is wrong: `max_epochs` is the last epoch that fits, not the first that does not; the noise
decays at the mechanism's rate; and a step is charged before it is taken. With MindArmour's own names and defaults it is
`epsilon_ledger.mindarmour.RDPMonitor`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._run.item_iterator import Executor
from epsilon_ledger._run.method_binding import client_method
from epsilon_ledger._run.run import Run
from epsilon_ledger._wire import planning
from epsilon_ledger._wire.coercion import noise, real, whole
from epsilon_ledger._wire.composite_events import decay
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import StepAuthorization
from epsilon_ledger._wire.noise_decay import DecayMode, decayed
from epsilon_ledger._wire.noise_events import gaussian
from epsilon_ledger._wire.problem_errors import InvalidRequestError
from epsilon_ledger._wire.problems import BudgetExceededError
from epsilon_ledger._wire.sampled_events import poisson_sampled
from epsilon_ledger._wire.wording import percent

Policy: TypeAlias = Literal["rdp", "zcdp"]

_MOST_STEPS = 10_000_000
"""Maximum number of steps of a schedule."""

_compute_epsilon = client_method(planning.compute_epsilon)
_compute_delta = client_method(planning.compute_delta)


@dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """Limit of a training: of epsilon at a delta, or of delta at an epsilon.

    Args:
        delta: at which epsilon is computed; None: delta is computed.
        epsilon: at which delta is computed; None: epsilon is computed.
        limit: of what is computed.

    Raises:
        ValueError: not exactly one of `delta` and `epsilon` is given, or a number is out of its range.
    """

    delta: float | None
    epsilon: float | None
    limit: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if (self.delta is None) == (self.epsilon is None):
            raise ValueError("Give either target_delta or target_eps: the other of the two is computed.")
        if self.delta is not None:
            real("target_delta", self.delta, 1e-30, 0.5, below=True)
            real("max_eps", self.limit, 0.0, math.inf, above=True)
        if self.epsilon is not None:
            real("target_eps", self.epsilon, 0.0, 1e4)
            real("max_delta", self.limit, 0.0, 1.0, above=True)

    def cost(self, ledger: Executor, plan: EventCount) -> tuple[float, float]:
        """Compute the epsilon and delta of a plan that is fixed in advance.

        Args:
            ledger: a client, or a run.
            plan: fixed in advance.

        Returns:
            Both, one of which is the target's.

        Raises:
            LedgerError: the plan is not supported, or no response arrived.
        """
        if self.epsilon is not None:
            return self.epsilon, _compute_delta(ledger, [plan], epsilon=self.epsilon).delta
        assert self.delta is not None, "checked above"
        return _compute_epsilon(ledger, [plan], delta=self.delta).epsilon, self.delta

    def allows(self, epsilon: float, delta: float) -> bool:
        """Whether a cost is within the limit."""
        return (epsilon if self.epsilon is None else delta) <= self.limit


class PrivacyMonitor:
    """Monitor that plans the length of a training, authorizes its steps and prints its epsilon.

    Args:
        ledger: a client for planning; or the run itself.
        run: to charge, from the step that its training has reached; None: only plan.
        policy: `rdp`; or `zcdp`, without amplification by sampling, so that sampled steps are refused.
        num_samples: records in the data.
        batch_size: expected number of records in a step; under `rdp` the Poisson sampling probability is batch_size /
            num_samples.
        initial_noise_multiplier: standard deviation of the noise over the clipping norm at step 0, in [1e-3, 1e6].
        max_eps: maximum epsilon at `target_delta`; by default the remainder of the run's accounts.
        target_delta: delta at which epsilon is computed, in [1e-30, 0.5).
        max_delta: maximum delta at `target_eps`, in (0, 1), instead of the two above.
        target_eps: epsilon at which delta is computed, in [0, 1e4].
        orders: Rényi orders above 1, which in-process accountants need. The ledger minimises over all of its own, so
            that other orders would only give a larger figure: they are checked, and not used.
        noise_decay_mode: z / (1 + k t), z (1 - k)^t or z exp(-k t); None for constant noise.
        noise_decay_rate: k, for each step.
        per_print_times: steps from one line to the next.
        sampled: whether steps use samples; by default under `rdp`.
        epochs: number of all epochs of the training, from which the run learns its `expected_steps`: a refusal then
            answers for all steps that are left.
        write: prints a line.

    Raises:
        ValueError: an argument is out of its range, zCDP is combined with samples, or the noise decays and the run's
            training step is unknown.
        TypeError: the run is an AsyncRun, or no run.
    """

    def __init__(  # noqa: PLR0913 - theirs has as many
        self,
        ledger: Executor,
        run: Run | None = None,
        *,
        policy: Policy = "rdp",
        num_samples: int,
        batch_size: int,
        initial_noise_multiplier: float = 1.5,
        max_eps: float | None = None,
        target_delta: float | None = None,
        max_delta: float | None = None,
        target_eps: float | None = None,
        orders: Sequence[float] | None = None,
        noise_decay_mode: DecayMode | None = None,
        noise_decay_rate: float = 6e-6,
        per_print_times: int = 50,
        sampled: bool | None = None,
        epochs: int | None = None,
        write: Callable[[str], None] = print,
    ) -> None:
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be 'rdp' or 'zcdp', not {policy!r}.")
        self.sampled = policy == "rdp" if sampled is None else sampled
        if policy == "zcdp" and self.sampled:
            raise ValueError(
                "zCDP does not shrink with sampling: leave `sampled` out, and every step is charged as if it saw all "
                "records; or take policy 'rdp'."
            )
        records = whole("num_samples", num_samples)
        if whole("batch_size", batch_size) > records:
            raise ValueError(f"batch_size must be at most num_samples, {num_samples}, not {batch_size}.")
        self.target = _target(max_eps, target_delta, max_delta, target_eps)
        if run is None and self.target is None:
            raise ValueError(
                "Give max_eps and target_delta, or max_delta and target_eps, or a run, whose accounts have a remaining "
                "budget."
            )
        for order in orders or ():
            real("orders", order, 1.0, math.inf, above=True)
        if noise_decay_mode is not None and noise_decay_mode not in get_args(DecayMode):
            raise ValueError(f"noise_decay_mode must be 'time', 'step', 'exp' or None, not {noise_decay_mode!r}.")
        self.steps_per_epoch = records // batch_size
        self.run = None if run is None else require_blocking_run(run)
        self._ledger = ledger
        self._probability = batch_size / records
        self._noise = noise(initial_noise_multiplier, "initial_noise_multiplier")
        self._mode = noise_decay_mode
        self._rate = real("noise_decay_rate", noise_decay_rate, 0.0, 1.0)
        self._every = whole("per_print_times", per_print_times)
        self._write = write
        self._steps = 0
        if run is not None and epochs is not None:
            taken = run.next_step if run.step is None else run.step
            left = whole("epochs", epochs) * self.steps_per_epoch - taken
            run.expected_steps = run.next_step + max(1, left)
        if self._mode is not None and run is not None and run.step is None:
            raise ValueError(
                "Noise that decays goes on at the step that the training has reached, which the ledger cannot know: "
                "resume the run from what run.state_dict() returned, or give `step` to resume_run or get_run."
            )

    def event(self, step: int) -> Event:
        """Return the event of a step; the method itself can be a `schedule`.

        Args:
            step: its number, from 0.

        Returns:
            The event for the wire.
        """
        return self._of_noise(decayed(self._mode, self._noise, self._rate, step))

    def max_epochs(self) -> int:
        """Find the maximum number of whole epochs, from step 0, that fits the budget.

        With a target, it is the number of in-process Rényi accountants. An account that declares the training as
        `planned` admits more: `LedgerClient.find_max_steps` finds that number.

        Returns:
            The number; 0 if not even one fits.

        Raises:
            LedgerError: no response arrived.
        """
        most = _MOST_STEPS // self.steps_per_epoch
        fits, breaks = 0, 1
        while breaks <= most and self._fits(breaks):
            fits, breaks = breaks, 2 * breaks
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            if middle <= most and self._fits(middle):
                fits = middle
            else:
                breaks = middle
        return fits

    def step_begin(self) -> StepAuthorization:
        """Authorize the next step, before its noise is released.

        Returns:
            The permission.

        Raises:
            LedgerError: as `Run.authorize`.
            ValueError: there is no run.
        """
        if self.run is None:
            raise ValueError("This monitor only plans: give it a run to take steps.")
        authorization = self.run.authorize(event=self.event(self._step))
        self._steps += 1
        return authorization

    def step_end(self, run_context: Any = None) -> None:  # noqa: ANN401, ARG002 - MindSpore's, whose steps it may count
        """Print the current epsilon and the used share every `per_print_times` steps.

        Args:
            run_context: of a MindSpore callback; not needed, because the run counts its steps.
        """
        if self.run is not None and self._step and self._step % self._every == 0:
            state, epoch = self.run.state, self._step / self.steps_per_epoch
            self._write(
                f"step {self._step}, epoch {epoch:.2f}: epsilon {state.epsilon:.4f} at delta {state.delta:g}, "
                f"{percent(state.used)} used"
            )

    @property
    def _step(self) -> int:
        """Number of the next step: the run's if known, which survives restarts, or this monitor's."""
        known = None if self.run is None else self.run.step
        return self._steps if known is None else known

    def _of_noise(self, multiplier: float) -> Event:
        return poisson_sampled(self._probability, gaussian(multiplier)) if self.sampled else gaussian(multiplier)

    def plan(self, steps: int) -> EventCount:
        """Return the events of the first steps of the training.

        Args:
            steps: their number, at least 1.

        Returns:
            The events, for planning.
        """
        first = self._of_noise(self._noise)
        if self._mode is None:
            return {"event": first, "count": steps}
        return {"event": decay(self._mode, self._rate, first, steps=steps), "count": 1}

    def _fits(self, epochs: int) -> bool:
        plan = self.plan(epochs * self.steps_per_epoch)
        try:
            if self.target is not None:
                return self.target.allows(*self.target.cost(self._ledger, plan))
            assert self.run is not None, "checked when it was made"
            self.run.preview(events=[plan])
        except BudgetExceededError:
            return False
        except InvalidRequestError as error:
            # The noise has decayed below the supported minimum.
            if error.code != "invalid_event":
                raise
            return False
        return True


def _target(
    max_eps: float | None, target_delta: float | None, max_delta: float | None, target_eps: float | None
) -> PrivacyTarget | None:
    if (max_eps is None) != (target_delta is None) or (max_delta is None) != (target_eps is None):
        raise ValueError("Give max_eps and target_delta together, or max_delta and target_eps.")
    limit = max_delta if max_eps is None else max_eps
    return None if limit is None else PrivacyTarget(target_delta, target_eps, limit)
