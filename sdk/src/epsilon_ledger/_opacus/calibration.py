"""Noise for a training loop: the minimum of an account that will be created, or of a run that exists."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from epsilon_ledger import (
    BudgetExceededError,
    Event,
    EventCount,
    LedgerClient,
    NeighboringRelation,
    Run,
    Trial,
    adaptive_clipping,
    gaussian,
    poisson_sampled,
)
from epsilon_ledger._opacus.errors import UnsupportedTrainingError
from epsilon_ledger._opacus.hook import together
from epsilon_ledger._opacus.public_size import public_size_of, steps_per_epoch
from epsilon_ledger._opacus.ranks import computed_by_rank_0
from epsilon_ledger._opacus.samples import drawable_probability
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.wording import percent

MIN_NOISE: Final = 1e-2
MAX_NOISE: Final = 1e4
"""Noise multipliers between which a run's is searched for."""

TOLERANCE: Final = 1e-4
"""By which a run's noise multiplier may be larger than the minimum, relatively."""


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """A training loop that fits a limit whose account declares it.

    Args:
        noise_multiplier: for `make_private`.
        noise_multiplier_without_plan: what an account that declares no plan would need; None: no noise suffices.
        event: of one step, for `create_run`.
        steps: number of the loop's steps.
    """

    noise_multiplier: float
    noise_multiplier_without_plan: float | None
    event: Event
    steps: int

    @property
    def planned(self) -> EventCount:
        """The steps, to be declared in `planned` of the account."""
        return EventCount(event=self.event, count=self.steps)


def plan_training(  # noqa: PLR0913 - what it plans, by name
    client: LedgerClient,
    data_loader: DataLoader,
    *,
    epochs: int,
    target_epsilon: float,
    target_delta: float,
    other_events: Sequence[EventCount] | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    public_size: int | None = None,
) -> PlannedTraining:
    """Find the minimum noise with which a limit admits a training loop that is declared as `planned`.

    It is less than what Opacus finds by Rényi curves. With its `planned` declared, `make_private_with_epsilon` of an
    attached engine finds the same.

    Args:
        client: asked for the noise.
        data_loader: the one that `make_private` is given, which will draw Poisson samples of 1 / len(data_loader).
        epochs: each of len(data_loader) steps.
        target_epsilon: of the account's limit.
        target_delta: of the account's limit.
        other_events: planned before the training.
        neighboring_relation: of the account; by default the ledger's.
        public_size: public number of records, as for `attach`; None: that of the loader.

    Raises:
        UnsupportedTrainingError: no noise suffices.
        TypeError: an argument has another type.
        ValueError: a number is below 1.
        LedgerError: no response arrived.
    """
    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"data_loader must be the DataLoader that make_private is given, not {data_loader!r}.")
    batches = steps_per_epoch(data_loader, None if public_size is None else whole("public_size", public_size))
    steps = whole("epochs", epochs) * batches
    found = client.find_noise_multiplier(
        poisson_sampled(drawable_probability(1 / batches), gaussian(1.0)),
        count=steps,
        epsilon=target_epsilon,
        delta=target_delta,
        other_events=other_events,
        neighboring_relation=neighboring_relation,
    )
    noise = found.noise_multiplier
    if noise.with_plan is None or found.event is None:
        raise UnsupportedTrainingError(
            f"No noise makes {steps} steps fit epsilon {target_epsilon:g} at delta {target_delta:g}: "
            + " ".join(found.warnings)
        )
    return PlannedTraining(noise.with_plan, noise.without_plan, found.event, steps)


def calibrated(
    engine: PrivacyEngine,
    run: Run | Trial | None,
    *,
    stated: float | None,
    releases: int,
    custom: Callable[[DPOptimizer], Event] | None,
    public_size: int | None,
) -> Callable[..., Any]:
    """Build an engine's `make_private_with_epsilon` that calibrates to the run.

    Args:
        engine: its `make_private` takes the noise.
        run: to charge; None in a distributed worker, to which rank 0 sends the noise.
        stated: sampling probability given by the user, or None.
        releases: steps on one sample.
        custom: the user's function for the events, if any.
        public_size: public number of records given by the user, or None.
    """

    def make_private_with_epsilon(
        *,
        data_loader: DataLoader,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        **arguments: Any,  # noqa: ANN401 - Opacus' own signature
    ) -> Any:  # noqa: ANN401 - Opacus' own signature
        if isinstance(run, Trial) or custom is not None:
            why = "its events come from event=..." if custom else "a trial's noise is declared by its sweep"
            raise UnsupportedTrainingError(f"This training is not calibrated: {why}. Give the noise to make_private.")
        of = adaptive_clipping if arguments.get("clipping") == "adaptive" else gaussian

        def find() -> float:
            assert run is not None, "rank 0 has the run"
            batches = steps_per_epoch(data_loader, public_size_of(run, data_loader.dataset, public_size))
            rate = stated or drawable_probability(1 / batches)

            def step(noise: float) -> Event:
                release = together([of(noise)] * releases)
                return release if rate == 1.0 else poisson_sampled(rate, release)

            target = {"target_epsilon": target_epsilon, "target_delta": target_delta}
            steps = epochs * batches
            found = calibrate_run(run, step, steps=steps, **target)
            expect_steps(run, steps)
            return found

        noise = computed_by_rank_0(find)
        return engine.make_private(data_loader=data_loader, noise_multiplier=noise, **arguments)

    return make_private_with_epsilon


def expect_steps(run: Run, steps: int) -> None:
    """Tell a run the number of all steps of its training loop, of which it may have taken some."""
    taken = run.next_step if run.step is None else run.step
    run.expected_steps = run.next_step + max(1, steps - taken)


def calibrate_run(
    run: Run, step: Callable[[float], Event], *, steps: int, target_epsilon: float, target_delta: float
) -> float:
    """Find the minimum noise with which a run is admitted a training loop, by all of its accounts as they are now.

    The noise of a planned event is taken as it is: less noise would leave the plan.

    Args:
        run: asked by previews, which charge nothing. Its spending so far counts towards the target.
        step: returns the event of a step with a noise multiplier.
        steps: number of all steps of the loop; those that a resumed run has taken are subtracted.
        target_epsilon: of the run after the loop; best its own limit.
        target_delta: at least that of the run, at which its epsilon is computed.

    Returns:
        A noise multiplier that the run is admitted; the minimum is at most TOLERANCE smaller, or what 0.5 % of epsilon
        need, since the epsilon of a preview is at most that much above the one that is read.

    Raises:
        ValueError: the run's delta is larger than the target's.
        UnsupportedTrainingError: no noise suffices, or all steps have been taken.
        LedgerError: no response arrived.
    """
    state = run.refresh()
    if target_delta < state.delta:
        raise ValueError(
            f"The epsilon of {run.id} is at delta {state.delta:g}, not at {target_delta:g}. Create the run with a "
            f"limit at your target_delta, or give its delta as target_delta."
        )
    left = steps - run.next_step
    if left <= 0:
        raise UnsupportedTrainingError(
            f"{run.id} has taken {run.next_step} steps, and the loop has {steps}: there is nothing to calibrate. Give "
            f"the number of all epochs, or the noise itself to make_private."
        )

    def suffices(noise: float) -> bool:
        try:
            return run.preview(left, event=step(noise)).epsilon <= target_epsilon
        except BudgetExceededError:
            return False

    planned = [] if state.plan is None else [item.event for item in state.plan.items]
    for event in planned if state.event is None else [state.event, *planned]:
        noise = _noise_of(event, step)
        if noise is not None and suffices(noise):
            return noise
    found = _least_noise(suffices)
    if found is None:
        raise UnsupportedTrainingError(
            f"No noise makes {left} steps of {run.id} fit epsilon {target_epsilon:g} at delta {state.delta:g}: it has "
            f"epsilon {state.epsilon:g} already, and {percent(state.used)} of {state.binding_account_path} is used. "
            f"Create a run with limit=Limit({target_epsilon:g}, {target_delta:g})."
        )
    return found


def _noise_of(event: Event, step: Callable[[float], Event]) -> float | None:
    """Get the noise multiplier with which a step is an event; None if it never is."""
    for noise in _noise_multipliers(event):
        if step(noise) == event:
            return noise
    return None


def _noise_multipliers(part: object) -> Iterator[float]:
    """Iterate over the noise multipliers that an event has at any depth."""
    if isinstance(part, dict):
        noise = part.get("noise_multiplier")
        if isinstance(noise, float | int):
            yield float(noise)
        for inner in part.values():
            yield from _noise_multipliers(inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _noise_multipliers(inner)


def _least_noise(suffices: Callable[[float], bool]) -> float | None:
    """Find the minimum noise multiplier that suffices, where more noise suffices too; None: not even MAX_NOISE does."""
    high = 1.0
    while not suffices(high):
        high *= 2
        if high > MAX_NOISE:
            return None
    low = high / 2
    while low >= MIN_NOISE and suffices(low):
        low, high = low / 2, low
    while high > low * (1 + TOLERANCE):
        middle = sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
