"""A monitor like MindArmour's `PrivacyMonitorFactory`, with enforcement by a ledger.

It differs where theirs is wrong: `max_epochs` is the last epoch that fits, not the first that does not; the noise
decays at the mechanism's rate; and a step is charged before it is taken.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from epsilon_ledger._client import LedgerClient
from epsilon_ledger._run.run import Run
from epsilon_ledger._wire.coercion import noise, real, whole
from epsilon_ledger._wire.event_factories import decay, gaussian, poisson_sampled
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import StepAuthorization
from epsilon_ledger._wire.noise_decay import DecayMode, decayed
from epsilon_ledger._wire.problem_errors import InvalidRequestError
from epsilon_ledger._wire.problems import BudgetExceededError

Policy: TypeAlias = Literal["rdp", "zcdp"]

_MOST_STEPS = 10_000_000
"""Maximum number of steps of a schedule."""


class PrivacyMonitor:
    """Monitor that plans the length of a training, authorizes its steps and prints its epsilon.

    Args:
        ledger: for planning.
        run: to charge, from the step that its training has reached; None: only plan.
        policy: `rdp`; or `zcdp`, without amplification by sampling, so that sampled steps are refused.
        num_samples: records in the data.
        batch_size: expected number of records in a step; under `rdp` the Poisson sampling probability is batch_size /
            num_samples.
        initial_noise_multiplier: standard deviation of the noise over the clipping norm at step 0, in [1e-3, 1e6].
        max_eps: maximum epsilon; by default the remainder of the run's accounts.
        target_delta: of this epsilon.
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
    """

    def __init__(  # noqa: PLR0913 - theirs has as many
        self,
        ledger: LedgerClient,
        run: Run | None = None,
        *,
        policy: Policy = "rdp",
        num_samples: int,
        batch_size: int,
        initial_noise_multiplier: float = 1.5,
        max_eps: float | None = None,
        target_delta: float | None = None,
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
        if (max_eps is None) != (target_delta is None) or (run is None and max_eps is None):
            raise ValueError("Give max_eps and target_delta, or a run, whose accounts have a remaining budget.")
        if noise_decay_mode is not None and noise_decay_mode not in get_args(DecayMode):
            raise ValueError(f"noise_decay_mode must be 'time', 'step', 'exp' or None, not {noise_decay_mode!r}.")
        self.steps_per_epoch = records // batch_size
        self.run = run
        self._ledger = ledger
        self._probability = batch_size / records
        self._noise = noise(initial_noise_multiplier, "initial_noise_multiplier")
        self._mode = noise_decay_mode
        self._rate = real("noise_decay_rate", noise_decay_rate, 0.0, 1.0)
        self._target = None if max_eps is None or target_delta is None else (max_eps, target_delta)
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

        With `max_eps`, it is the number of in-process Rényi accountants. An account that declares the training as
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

    def step_end(self) -> None:
        """Print the current epsilon every `per_print_times` steps."""
        if self.run is not None and self._step and self._step % self._every == 0:
            state, epoch = self.run.state, self._step / self.steps_per_epoch
            self._write(
                f"step {self._step}, epoch {epoch:.2f}: epsilon {self.run.epsilon:.4f} of {state.epsilon_limit:g} "
                f"at delta {state.delta:g}"
            )

    @property
    def _step(self) -> int:
        """Number of the next step: the run's if known, which survives restarts, or this monitor's."""
        known = None if self.run is None else self.run.step
        return self._steps if known is None else known

    def _of_noise(self, multiplier: float) -> Event:
        return poisson_sampled(self._probability, gaussian(multiplier)) if self.sampled else gaussian(multiplier)

    def _fits(self, epochs: int) -> bool:
        steps, first = epochs * self.steps_per_epoch, self._of_noise(self._noise)
        plan: EventCount = {"event": first, "count": steps}
        if self._mode is not None:
            plan = {"event": decay(self._mode, self._rate, first, steps=steps), "count": 1}
        try:
            if self._target is not None:
                epsilon, delta = self._target
                return self._ledger.compute_epsilon([plan], delta=delta).epsilon <= epsilon
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
