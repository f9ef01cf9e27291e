"""An Opacus accountant that answers from the ledger."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from opacus.accountants import IAccountant, RDPAccountant, register_accountant
from opacus.optimizers import DPOptimizer

from epsilon_ledger import Event, EventCount, LedgerClient, NeighboringRelation, Run, Trial, gaussian, poisson_sampled
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.hook import LedgerHook, checked_run

MECHANISM: Final = "ledger"


class LedgerAccountant(IAccountant):
    """An Opacus accountant that answers from the ledger.

    It never asks twice: an attached optimizer has asked when its hook comes here, and is only written down. `step`,
    called by a loop of one's own, asks itself. An optimizer that was not attached is stopped.

    Args:
        run: whose budget is spent.
        client: to compute epsilons at other deltas than the run's; optional.

    Raises:
        TypeError: the run is an AsyncRun.
    """

    def __init__(self, run: Run | Trial, *, client: LedgerClient | None = None) -> None:
        super().__init__()
        self.run = checked_run(run)
        self._client = client
        self._events: list[EventCount] = []

    @classmethod
    def mechanism(cls) -> str:
        """Name the way of accounting, as Opacus does."""
        return MECHANISM

    @property
    def events(self) -> tuple[EventCount, ...]:
        """What was admitted through this accountant, in order."""
        return tuple(self._events)

    def __len__(self) -> int:
        """Count the steps of the run that the ledger has admitted, those of earlier processes included."""
        return self.run.next_step

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Ask for one step of a loop that has no attached optimizer, before its noise is released.

        Args:
            noise_multiplier: standard deviation of the noise over the clipping norm, in [1e-3, 1e6].
            sample_rate: probability of each record to be in the Poisson sample, in (0, 1].

        Raises:
            BudgetExceededError: the step does not fit.
            LedgerError: anything else: do not release.
        """
        event = poisson_sampled(sample_rate, gaussian(noise_multiplier))
        self.run.authorize(event=event)
        self._write_down(event, noise_multiplier, sample_rate)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """Give `make_private` what it attaches to its optimizer.

        Args:
            sample_rate: one over the loader's length, for the history; the sampler itself says what is charged.

        Returns:
            A hook that writes down a step which the ledger has admitted, and stops any other.
        """

        def write_down(optimizer: DPOptimizer) -> None:
            hook = optimizer.step_hook
            if not isinstance(hook, LedgerHook) or hook.event is None or (hook.run and hook.run.id != self.run.id):
                raise UnsupportedTrainingError(
                    "This accountant's optimizer does not ask the ledger. Call attach(privacy_engine, run) before "
                    "make_private, or attach(optimizer, run, data_loader=data_loader) after it."
                )
            if hook.charged:
                self._write_down(hook.event, optimizer.noise_multiplier, sample_rate)

        return write_down

    def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
        """Read what the run has spent.

        At the run's own delta this is the ledger's epsilon, whatever process spent it, with what was granted ahead. At
        another delta the ledger computes it for the steps that this accountant saw, as a plan that was fixed in
        advance, which other Opacus accountants always assume; it takes a client, and an accountant that saw the run
        from its first step.

        Args:
            delta: in [1e-30, 0.5).
            *args: none.
            **kwargs: none.

        Returns:
            Epsilon, `math.inf` if there is no finite bound.

        Raises:
            ValueError: the epsilon at this delta cannot be known here.
            LedgerError: the ledger does not answer.
        """
        if args or kwargs:
            raise ValueError("The ledger has its own orders: get_epsilon takes delta and nothing else.")
        state = self.run.state
        if delta == state.delta:
            return max(self.run.refresh().epsilon, self.run.epsilon)
        seen = sum(item["count"] for item in self._events)
        why = ""
        if self._client is None:
            why = "it has no client"
        elif state.attempt > 1:
            why = "earlier attempts of the run have spent, too"
        elif seen != self.run.next_step:
            why = f"it saw {seen} of the run's {self.run.next_step} steps (load its state from the checkpoint)"
        if self._client is None or why:
            raise ValueError(f"This accountant answers at the run's delta, {state.delta:g}, not at {delta:g}: {why}.")
        if not seen:
            return 0.0
        relation = cast("NeighboringRelation", state.neighboring_relation)
        return self._client.epsilon(self._events, delta=delta, neighboring_relation=relation).epsilon

    def state_dict(self, destination: Any = None) -> Any:  # noqa: ANN401 - Opacus' own signature
        """Write down what it saw, for a checkpoint; what was spent stands in the ledger.

        Args:
            destination: a mapping to write to, or None for a new one.

        Returns:
            The mapping.
        """
        state = super().state_dict(destination)
        state["run"] = self.run.id
        state["events"] = [dict(item) for item in self._events]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up what an earlier process of this run saw.

        Args:
            state_dict: what `state_dict` gave.

        Raises:
            ValueError: it is another accountant's, or another run's.
        """
        super().load_state_dict(state_dict)
        if state_dict.get("run") != self.run.id:
            raise ValueError(f"This state belongs to {state_dict.get('run')}, but the accountant to {self.run.id}.")
        self._events = [EventCount(event=item["event"], count=item["count"]) for item in state_dict["events"]]

    def _write_down(self, event: Event, noise_multiplier: float, sample_rate: float) -> None:
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
    """What `make_private_with_epsilon` finds its noise by, where a LedgerAccountant counts: Rényi, as the ledger."""

    @classmethod
    def mechanism(cls) -> str:
        return MECHANISM

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        raise UnsupportedTrainingError(
            f"No run is charged at a sample rate of {sample_rate:g}: call attach(privacy_engine, run) first."
        )


register_accountant(MECHANISM, _Calibration, force=True)
