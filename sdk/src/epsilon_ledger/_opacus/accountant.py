"""An Opacus accountant backed by the ledger."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from opacus.accountants import IAccountant, RDPAccountant, register_accountant
from opacus.optimizers import DPOptimizer

from epsilon_ledger import (
    EpsilonEstimate,
    Event,
    EventCount,
    NeighboringRelation,
    Run,
    Trial,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.hook import LedgerHook
from epsilon_ledger._run.blocking_run import require_blocking_run
from epsilon_ledger._run.method_binding import client_method
from epsilon_ledger._wire import planning

MECHANISM: Final = "ledger"

_compute_epsilon = client_method(planning.compute_epsilon)


class LedgerAccountant(IAccountant):
    """An Opacus accountant backed by the ledger.

    Steps of an attached optimizer are already authorized and only recorded. `step`, for custom loops, authorizes. An
    optimizer that is not attached is stopped.

    Args:
        run: to charge.
        instead_of: name of the accountant that it replaces, whose epsilon is expected: see `get_epsilon`.

    Raises:
        TypeError: the run is an AsyncRun, or no run.
    """

    def __init__(self, run: Run | Trial, *, instead_of: str = "rdp") -> None:
        super().__init__()
        self.run = require_blocking_run(run)
        self._by_orders = instead_of == RDPAccountant.mechanism()
        self._events: list[EventCount] = []

    @classmethod
    def mechanism(cls) -> str:
        """Return the accountant's name for Opacus."""
        return MECHANISM

    @property
    def events(self) -> tuple[EventCount, ...]:
        """Events admitted through this accountant, in order."""
        return tuple(self._events)

    def __len__(self) -> int:
        """Count the run's admitted steps, including those of earlier processes."""
        return self.run.next_step

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Authorize one step of a custom loop, before its noise is released.

        Args:
            noise_multiplier: standard deviation of the noise over the clipping norm, in [1e-3, 1e6].
            sample_rate: Poisson sampling probability of each record, in (0, 1].

        Raises:
            BudgetExceededError: the step does not fit.
            LedgerError: any other failure: do not release.
        """
        event = poisson_sampled(sample_rate, gaussian(noise_multiplier))
        self.run.authorize(event=event)
        self.record(event, noise_multiplier, sample_rate)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """Return the hook that `make_private` attaches to its optimizer.

        Args:
            sample_rate: one over the loader's length, for the history only; the charge uses the sampler.

        Returns:
            A hook that records an authorized step and stops any other.
        """

        def record(optimizer: DPOptimizer) -> None:
            hook = optimizer.step_hook
            if not isinstance(hook, LedgerHook) or hook.event is None or not self._is_own(hook.run):
                raise UnsupportedTrainingError(
                    "This accountant's optimizer does not ask the ledger. Call attach(privacy_engine, run) before "
                    "make_private, or attach(optimizer, run, data_loader=data_loader) after it."
                )
            if hook.charged:
                self.record(hook.event, optimizer.noise_multiplier, sample_rate)

        return record

    def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
        """Get the epsilon of the steps at a delta, as if they had been fixed in advance.

        In the place of "prv" or "gdp" it is the ledger's, the smallest that is proven: by privacy loss distributions,
        or by Rényi orders where an event has none. At the run's own delta it is of all that the run was charged, over
        all processes and with granted steps. At another delta the ledger computes it for this accountant's steps, which
        must be all of the run. The approximation of "gdp" can be too low, and is not used.

        In the place of "rdp" it is what Opacus' own accountant prints for this accountant's steps. Where that is below
        the ledger's epsilon, it is the ledger's: other steps were charged as well, the relation is not Opacus', a step
        released more than Opacus counts, or Opacus is below the truth.

        Args:
            delta: in [1e-30, 0.5).
            *args: none.
            **kwargs: none.

        Returns:
            Epsilon, `math.inf` without a finite bound.

        Raises:
            ValueError: the epsilon at this delta cannot be computed here.
            LedgerError: the ledger does not answer.
        """
        if args or kwargs:
            raise ValueError("The ledger has its own orders: get_epsilon takes delta and nothing else.")
        if delta == self.run.state.delta:
            proven = max(self.run.refresh().epsilon, self.run.epsilon)
        else:
            estimate = self._estimate(delta)
            proven = 0.0 if estimate is None else estimate.epsilon
        return max(proven, self._epsilon_of_opacus(delta)) if self._by_orders else proven

    def _epsilon_of_opacus(self, delta: float) -> float:
        opacus = RDPAccountant()
        opacus.history = self.history
        with warnings.catch_warnings():  # of the best order at an end of theirs: it can only make epsilon larger
            warnings.filterwarnings("ignore", "Optimal order is", UserWarning)
            return float(opacus.get_epsilon(delta))

    def get_planned_epsilon(self, delta: float) -> float:
        """Compute the limit that an account needs for this accountant's steps, if it declares them as `planned`.

        Nothing was charged so.

        Args:
            delta: in [1e-30, 0.5).

        Returns:
            Epsilon, `math.inf` without a finite bound.

        Raises:
            ValueError: it cannot be computed here.
            LedgerError: the ledger does not answer.
        """
        estimate = self._estimate(delta)
        return 0.0 if estimate is None else estimate.limit_needed.with_plan

    def _estimate(self, delta: float) -> EpsilonEstimate | None:
        """Compute the epsilon of this accountant's steps as a plan; None: of no step."""
        state = self.run.state
        seen = sum(item["count"] for item in self._events)
        why = ""
        if isinstance(self.run, Trial):
            why = "all trials of the sweep are charged together"
        elif state.attempt > 1:
            why = "earlier attempts of the run have spent, too"
        elif seen != self.run.next_step:
            why = f"it saw {seen} of the run's {self.run.next_step} steps (load its state from the checkpoint)"
        if isinstance(self.run, Trial) or why:
            raise ValueError(
                f"This accountant answers at the run's delta, {state.delta:g}, and for no plan at {delta:g}: {why}."
            )
        if not seen:
            return None
        relation = cast("NeighboringRelation", state.neighboring_relation)
        return _compute_epsilon(self.run, self._events, delta=delta, neighboring_relation=relation)

    def state_dict(self, destination: Any = None) -> Any:  # noqa: ANN401 - Opacus' own signature
        """Return the recorded events for a checkpoint; the ledger has the spending.

        Args:
            destination: a mapping to update, or None for a new one.

        Returns:
            The mapping.
        """
        state = super().state_dict(destination)
        state["run"] = self.run.id
        state["events"] = [dict(item) for item in self._events]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the events recorded by an earlier process of this run.

        Args:
            state_dict: from `state_dict`.

        Raises:
            ValueError: it belongs to another accountant or run.
        """
        super().load_state_dict(state_dict)
        if state_dict.get("run") != self.run.id:
            raise ValueError(
                f"This state belongs to {state_dict.get('run')}, but the accountant to {self.run.id}. To start another "
                "run from a checkpoint, load the module's parameters alone, and register the run by "
                "client.create_run(..., starts_from=[state of the checkpoint's accountant])."
            )
        self._events = [EventCount(event=item["event"], count=item["count"]) for item in state_dict["events"]]

    def _is_own(self, run: Run | Trial | None) -> bool:
        return run is self.run or run is None or run.id == self.run.id

    def record(self, event: Event, noise_multiplier: float, sample_rate: float) -> None:
        """Record a step that was authorized.

        Args:
            event: that was charged.
            noise_multiplier: of the step.
            sample_rate: for the history.
        """
        noise, rate = float(noise_multiplier), float(sample_rate)
        if self.history and self.history[-1][:2] == (noise, rate):
            self.history[-1] = (noise, rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise, rate, 1))
        if self._events and self._events[-1]["event"] == event:
            self._events[-1]["count"] += 1
        else:
            self._events.append(EventCount(event=event, count=1))


class _Calibration(RDPAccountant):
    """RDP accountant with which `make_private_with_epsilon` calibrates noise if no run is attached to the engine."""

    @classmethod
    def mechanism(cls) -> str:
        return MECHANISM

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        raise UnsupportedTrainingError(
            f"No run is charged at a sample rate of {sample_rate:g}: call attach(privacy_engine, run) first."
        )


register_accountant(MECHANISM, _Calibration, force=True)
