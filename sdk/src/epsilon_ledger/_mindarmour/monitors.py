"""MindArmour's privacy monitors and their factory."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from epsilon_ledger._mindarmour.dangers import warn
from epsilon_ledger._mindarmour.noise import DECAY_MODES
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._run.item_iterator import Executor
from epsilon_ledger._run.run import Run
from epsilon_ledger._wire.coercion import noise, real, whole
from epsilon_ledger._wire.wording import percent
from epsilon_ledger.monitor import Policy, PrivacyMonitor, PrivacyTarget

DecayPolicy: TypeAlias = Literal["Time", "Step", "Exp"]

_DEFAULT_DECAY = "Time", 6e-4
_UNLIMITED = {True: sys.float_info.max, False: 1.0}
"""Of an epsilon, and of a delta."""


class _Monitor:
    """What both monitors share: the plan of a training, its cost, and a line every so many steps."""

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of both
        self,
        policy: Policy,
        numbers: tuple[int, int, float],
        target: tuple[float | None, float | None, float | None],
        decay: tuple[DecayPolicy | None, float],
        printing: tuple[int, bool],
        run: Run | None,
        ledger: Executor | None,
        write: Callable[[str], None],
    ) -> None:
        num_samples, batch_size, multiplier = numbers
        samples, batch = _records("num_samples", num_samples), _records("batch_size", batch_size)
        if batch >= samples:
            raise ValueError(f"batch_size must be less than num_samples, {samples}, not {batch}.")
        mode, rate = decay
        if mode is not None and mode not in DECAY_MODES:
            raise ValueError(f"noise_decay_mode must be 'Time', 'Step', 'Exp' or None, not {mode!r}.")
        if not isinstance(printing[1], bool):
            raise TypeError(f"dataset_sink_mode must be True or False, not {printing[1]!r}.")
        if run is not None:
            require_blocking_run(run)
        asked = run if ledger is None else ledger
        if asked is None:
            raise ValueError("Who computes? Give run=, the run of this training, or ledger=, a client for planning.")
        self.schedule = (
            noise(multiplier, "initial_noise_multiplier"),
            None if mode is None else DECAY_MODES[mode],
            None if mode is None else real("noise_decay_rate", rate, 0.0, 1.0, above=True, below=True),
        )
        """Noise multiplier of the first step, the ledger's name of its decay, and the rate."""
        every = whole("per_print_times", printing[0])
        self._every = samples // batch if printing[1] else every
        delta, epsilon, limit = target
        self._target = PrivacyTarget(delta, epsilon, _UNLIMITED[epsilon is None] if limit is None else limit)
        self._limited = limit is not None
        self._run, self._ledger, self._write = run, asked, write
        self._plans = PrivacyMonitor(
            asked,
            policy=policy,
            num_samples=samples,
            batch_size=batch,
            initial_noise_multiplier=multiplier,
            max_eps=self._target.limit if epsilon is None else None,
            target_delta=delta,
            max_delta=None if epsilon is None else self._target.limit,
            target_eps=epsilon,
            noise_decay_mode=self.schedule[1],
            noise_decay_rate=self.schedule[2] or 0.0,
        )
        if delta is not None and delta >= 1 / samples:
            warn(
                f"target_delta={delta:g} is 1/num_samples, {1 / samples:.2g}, or more: it allows to publish a "
                f"record. Give a delta well below, such as {0.1 / samples:.1g}."
            )
        if (mode, rate) == _DEFAULT_DECAY:
            warn(
                "noise_decay_mode='Time' and noise_decay_rate=6e-4 are this monitor's defaults. The mechanisms' own "
                "are constant noise for 'Gaussian' and 6e-6 for 'AdaGaussian'. Give what the mechanism really does, or "
                "noise_decay_mode=None."
            )

    def max_epoch_suggest(self) -> int:
        """Find the maximum number of epochs that fits.

        MindArmour's returns the first number that does not fit.

        Returns:
            The number; 0 if not even one fits.

        Raises:
            ValueError: there is no limit: max_eps or max_delta.
            LedgerError: no response arrived.
        """
        if not self._limited:
            wanted = "max_delta with target_eps" if self._target.delta is None else "max_eps with target_delta"
            raise ValueError(f"How much may the training cost? Give {wanted}.")
        return self._plans.max_epochs()

    def step_end(self, run_context: Any) -> None:  # noqa: ANN401 - MindSpore's, or one of `DPModel`
        """Print the training's epsilon and delta, and with a run the used share, every `per_print_times` steps.

        Args:
            run_context: of a callback, whose `original_args()` have cur_step_num, cur_epoch_num and batch_num.

        Raises:
            LedgerError: no response arrived.
        """
        params = run_context.original_args()
        step = int(params.cur_step_num)
        if step % self._every:
            return
        if self._run is not None:
            state = self._run.state
            epsilon, delta, used = state.epsilon, state.delta, f", {percent(state.used)} used"
        else:
            epsilon, delta = self._target.cost(self._ledger, self._plans.plan(step))
            used = ""
        self._write(
            f"epoch: {params.cur_epoch_num} step: {(step - 1) % int(params.batch_num) + 1}, delta is {delta:g}, "
            f"eps is {epsilon:.6g}{used}"
        )

    on_train_step_end = step_end


class RDPMonitor(_Monitor):
    """Monitor of a training of Poisson samples.

    With a run, it prints what the ledger has charged, which includes the count of adaptive clipping. It charges nothing
    itself: `DPModel` does, or `epsilon_ledger.mindspore.LedgerCallback`.

    Args:
        num_samples: records in the data.
        batch_size: records in a batch; the sampling probability is batch_size / num_samples.
        initial_noise_multiplier: standard deviation of the noise over norm_bound at step 0, in [1e-3, 1e6].
        max_eps: maximum epsilon at `target_delta`; None: no limit.
        target_delta: delta at which epsilon is computed, in [1e-30, 0.5), or None.
        max_delta: maximum delta at `target_eps`, in (0, 1); None: no limit.
        target_eps: epsilon at which delta is computed, in [0, 1e4], or None.
        orders: numbers above 1. They are not used: the ledger minimises over all of its orders.
        noise_decay_mode: of the mechanism: 'Time', 'Step', 'Exp', or None for constant noise.
        noise_decay_rate: of the mechanism, in (0, 1).
        per_print_times: steps from one line to the next.
        dataset_sink_mode: True prints once an epoch.
        run: of the training.
        ledger: a client for planning, if there is no run.
        write: prints a line.

    Raises:
        TypeError: a number is not a number, or the run is an AsyncRun.
        ValueError: an argument is out of its bounds, not exactly one of target_delta and target_eps is given, or
            neither a run nor a client.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - MindArmour's order
        self,
        num_samples: int,
        batch_size: int,
        initial_noise_multiplier: float = 1.5,
        max_eps: float | None = 10.0,
        target_delta: float | None = 1e-3,
        max_delta: float | None = None,
        target_eps: float | None = None,
        orders: Sequence[float] | None = None,
        noise_decay_mode: DecayPolicy | None = "Time",
        noise_decay_rate: float = 6e-4,
        per_print_times: int = 50,
        dataset_sink_mode: bool = False,  # noqa: FBT001, FBT002 - as above
        *,
        run: Run | None = None,
        ledger: Executor | None = None,
        write: Callable[[str], None] = print,
    ) -> None:
        for order in orders or ():
            real("orders", order, 1.0, float("inf"), above=True)
        super().__init__(
            "rdp",
            (num_samples, batch_size, initial_noise_multiplier),
            (target_delta, target_eps, max_eps if target_eps is None else max_delta),
            (noise_decay_mode, noise_decay_rate),
            (per_print_times, dataset_sink_mode),
            run,
            ledger,
            write,
        )


class ZCDPMonitor(_Monitor):
    """Monitor of a training whose steps count as if each saw all records, because zCDP does not shrink with sampling.

    Args:
        num_samples: as for `RDPMonitor`, like all other arguments: `target_delta` with `max_eps` is the only target.

    Raises:
        TypeError: as `RDPMonitor`.
        ValueError: as `RDPMonitor`.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - MindArmour's order
        self,
        num_samples: int,
        batch_size: int,
        initial_noise_multiplier: float = 1.5,
        max_eps: float = 10.0,
        target_delta: float = 1e-3,
        noise_decay_mode: DecayPolicy | None = "Time",
        noise_decay_rate: float = 6e-4,
        per_print_times: int = 50,
        dataset_sink_mode: bool = False,  # noqa: FBT001, FBT002 - as above
        *,
        run: Run | None = None,
        ledger: Executor | None = None,
        write: Callable[[str], None] = print,
    ) -> None:
        super().__init__(
            "zcdp",
            (num_samples, batch_size, initial_noise_multiplier),
            (target_delta, None, max_eps),
            (noise_decay_mode, noise_decay_rate),
            (per_print_times, dataset_sink_mode),
            run,
            ledger,
            write,
        )
        warn(
            f"zCDP does not shrink with sampling: each step counts as if it saw all {num_samples} records, though a "
            f"batch has {batch_size}. Take policy 'rdp' for steps on samples."
        )


class PrivacyMonitorFactory:
    """Factory of privacy monitors."""

    _monitors: ClassVar[Mapping[str, type[RDPMonitor] | type[ZCDPMonitor]]] = {"rdp": RDPMonitor, "zcdp": ZCDPMonitor}

    @classmethod
    def create(cls, policy: str, *args: Any, **kwargs: Any) -> RDPMonitor | ZCDPMonitor:  # noqa: ANN401 - passed on
        """Create a monitor.

        Args:
            policy: 'rdp' or 'zcdp'.
            *args: as for the monitor.
            **kwargs: as for the monitor.

        Raises:
            TypeError: as the monitor.
            ValueError: there is no such policy; or as the monitor.
        """
        if policy not in cls._monitors:
            raise ValueError(f"policy must be 'rdp' or 'zcdp', not {policy!r}.")
        return cls._monitors[policy](*args, **kwargs)


def _records(name: str, value: object) -> int:
    if isinstance(value, str):
        raise TypeError(
            f"{name} must be a whole number, not {value!r}. A policy such as 'rdp' is the first argument of "
            "PrivacyMonitorFactory.create, not of a monitor."
        )
    return whole(name, value)  # type: ignore[arg-type] # checked there
