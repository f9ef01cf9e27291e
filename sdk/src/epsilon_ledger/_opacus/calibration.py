"""Noise for a training loop, calibrated before its run is created."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import DataLoader

from epsilon_ledger import Event, EventCount, LedgerClient, NeighboringRelation, gaussian, poisson_sampled
from epsilon_ledger._opacus.errors import UnsupportedTrainingError


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


def plan_training(
    client: LedgerClient,
    data_loader: DataLoader,
    *,
    epochs: int,
    target_epsilon: float,
    target_delta: float,
    other_events: Sequence[EventCount] | None = None,
    neighboring_relation: NeighboringRelation | None = None,
) -> PlannedTraining:
    """Find the minimum noise with which a limit admits a training loop that is declared as `planned`.

    It is less than that of `make_private_with_epsilon`, which calibrates by Rényi curves.

    Args:
        client: asked for the noise.
        data_loader: the one that `make_private` is given, which will draw Poisson samples of 1 / len(data_loader).
        epochs: each of len(data_loader) steps.
        target_epsilon: of the account's limit.
        target_delta: of the account's limit.
        other_events: planned before the training.
        neighboring_relation: of the account; by default the ledger's.

    Raises:
        UnsupportedTrainingError: no noise suffices.
        LedgerError: no response arrived.
    """
    steps = epochs * len(data_loader)
    found = client.find_noise_multiplier(
        poisson_sampled(1 / len(data_loader), gaussian(1.0)),
        count=steps,
        epsilon=target_epsilon,
        delta=target_delta,
        other_events=other_events,
        neighboring_relation=neighboring_relation,
    )
    if found.noise_multiplier is None or found.event is None:
        raise UnsupportedTrainingError(
            f"No noise makes {steps} steps fit epsilon {target_epsilon:g} at delta {target_delta:g}: "
            + " ".join(found.warnings)
        )
    return PlannedTraining(found.noise_multiplier, found.noise_multiplier_without_plan, found.event, steps)
