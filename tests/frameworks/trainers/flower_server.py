"""Rounds of Flower, with clients within this process."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.flower import charge_rounds
from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

CLIENTS, PROBABILITY, NOISE = 4, 0.5, 20.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])

    class Noted(FedAvg):
        """Gets what a round has released."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:  # noqa: ANN401 - Flower's
            folder.released(poisson_sampled(PROBABILITY, gaussian(NOISE)))
            return super().aggregate_train(server_round, replies)

    def save(server_round: int, model: ArrayRecord) -> None:
        del model
        if server_round and run.next_step % CHECKPOINT_STEPS == 0:
            folder.save(run)

    wrapper = DifferentialPrivacyServerSideFixedClipping(Noted(), NOISE, 1.0, CLIENTS)
    strategy = charge_rounds(wrapper, run, unit="client", sampling_probability=PROBABILITY)
    rounds = asked["steps"] - (run.step or 0)
    with suppress(BudgetExceededError), run:
        if rounds > 0:
            grid = LocalGrid(shifted_by(lambda _: 0.1), CLIENTS)
            strategy.start(grid, arrays(np.zeros(8)), num_rounds=rounds, evaluate_fn=save)


if __name__ == "__main__":
    run_trainer(train)
