"""Trainers of each framework, as processes that may be killed: `python -m tests.frameworks.trainers JSON`.

Each notes a release where the framework itself makes it: when the parameters have moved, or an aggregate is handed on.
"""

# ruff: noqa: PLC0415 - each process imports its own framework
# ruff: noqa: ANN401 - values of frameworks

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Run, gaussian, poisson_sampled
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 64, 16, 20.0
STEP: Final = poisson_sampled(BATCH / RECORDS, gaussian(NOISE))
FEATURES: Final = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)


class Training:
    """A training whose journal and checkpoint survive its processes.

    Args:
        folder: with both.
        client: of the ledger.
        asked: as the command line has it.
    """

    def __init__(self, folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
        self.folder, self.client, self.asked = folder, client, asked

    @cached_property
    def run(self) -> Run:
        return self.folder.open_run(self.client, self.asked["budget"], **self.asked["ahead"])

    @property
    def goes_on(self) -> bool:
        return bool((self.run.step or 0) < self.asked["steps"])

    def note(self, *_: object, event: Event = STEP) -> None:
        """Note a release, and save what the next process goes on with."""
        self.folder.released(event)
        self.save()

    def save(self) -> None:
        if self.run.next_step % CHECKPOINT_STEPS == 0:
            self.folder.save(self.run)


def numpy_optimizer(training: Training) -> None:
    from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler

    noise, sampler = GaussianNoise(NOISE, clipping_norm=1.0), PoissonSampler(RECORDS, BATCH / RECORDS)
    optimizer = DpSgd(np.zeros(4), noise=noise, sampler=sampler, run=training.run, learning_rate=0.1)
    while training.goes_on:
        optimizer.step(FEATURES[optimizer.sample()])
        training.note()


def opacus(training: Training) -> None:
    from epsilon_ledger.opacus import attach
    from tests.frameworks.conftest import make_private, new_engine, small_loader

    engine = new_engine()
    attach(engine, training.run, public_size=RECORDS)
    made = make_private(engine, small_loader(batch_size=BATCH), noise_multiplier=NOISE)
    # Opacus calls it after the noise: here the parameters have moved.
    made.optimizer.original_optimizer.register_step_post_hook(lambda *_: training.folder.released(STEP))
    while training.goes_on:
        for batch in made.loader:
            if training.goes_on:
                made.step(batch)
                training.save()


def transformers_trainer(training: Training) -> None:
    """Train from the Trainer's own last checkpoint."""
    import torch

    from epsilon_ledger.transformers import last_checkpoint, make_private, run_state
    from tests.frameworks.language_models import gpt2, trainer_of

    output, asked = Path(training.asked["folder"]) / "trainer", training.asked
    checkpoint = last_checkpoint(str(output))
    if checkpoint:
        training.run = training.client.resume_run(run_state(checkpoint), **asked["ahead"])
    model: Any = gpt2()
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    sgd.register_step_post_hook(lambda *_: training.folder.released(STEP))
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": CHECKPOINT_STEPS, "save_total_limit": 2}
    given |= {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2, "max_steps": asked["steps"]}
    trainer = trainer_of(output, model, optimizers=(sgd, None), **given)
    make_private(trainer, training.run, noise_multiplier=NOISE, max_grad_norm=1.0, public_size=RECORDS)
    trainer.train(resume_from_checkpoint=checkpoint)


def jax_optax(training: Training) -> None:
    """Train with Optax's noise on padded Poisson samples."""
    import jax
    import jax.numpy as jnp

    from epsilon_ledger.jax import authorized
    from tests.frameworks.jax_trainings import padded, with_optax

    optimizer, update = with_optax(NOISE)
    update, probability = jax.jit(update, donate_argnums=(0, 1)), BATCH / RECORDS
    step: Any = authorized(update, training.run, noise=optimizer, batches=probability)
    params = {"w": jnp.zeros(4)}
    state = params, optimizer.init(params)
    for indices in step.batch_iterator(RECORDS):
        if not training.goes_on:
            return
        state = step(*state, *padded(indices, RECORDS))
        state[0]["w"].block_until_ready()  # here it is released
        training.note()


def keras_fit(training: Training) -> None:
    """Fit a model that jax-privacy made private."""
    import keras

    from epsilon_ledger.keras import attach
    from tests.frameworks.test_keras import fit, private

    def stepped(*_: object, **__: object) -> None:
        if not model.stop_training:
            training.note()
            model.stop_training = not training.goes_on

    model = private(noise_multiplier=NOISE)
    attach(model, training.run)
    if training.goes_on:
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=stepped)
        fit(model, training.asked["steps"], callbacks=[callback])


def flower_server(training: Training) -> None:
    """Train in rounds, with clients within this process."""
    from flwr.serverapp.strategy import FedAvg

    from epsilon_ledger.flower import charge_rounds
    from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by
    from tests.frameworks.test_flower_strategies import fixed

    class Noted(FedAvg):
        """Gets what a round has released."""

        def aggregate_train(self, *arguments: Any, **named: Any) -> Any:
            training.folder.released(poisson_sampled(0.5, gaussian(NOISE)))
            return super().aggregate_train(*arguments, **named)

    strategy = charge_rounds(fixed(Noted(), z=NOISE), training.run, unit="client", sampling_probability=0.5)
    if training.goes_on:
        how: dict[str, Any] = {"num_rounds": training.asked["steps"] - (training.run.step or 0)}
        how["evaluate_fn"] = lambda number, _: training.save() if number else None
        strategy.start(LocalGrid(shifted_by(lambda _: 0.1), 4), arrays(np.zeros(8)), **how)


def nvflare_filter(training: Training) -> None:
    """Send results of a site through its filter."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.filter import ContentBlockedException
    from nvflare.apis.fl_context import FLContext

    from epsilon_ledger.nvflare import LedgerFilter

    filter_, context = LedgerFilter(training.asked["budget"], 2 * NOISE, 1.0, unit="record"), FLContext()
    filter_._run = training.run  # FLARE's own sites open a new one in each process
    while training.goes_on:
        try:
            filter_.process(DXO(DataKind.WEIGHT_DIFF, data={"w": np.ones(8)}).to_shareable(), context)
        except ContentBlockedException as blocked:
            raise (blocked.__cause__ or blocked) from None
        training.note(event=gaussian(NOISE))  # a record moves its site's result by two clipping norms


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end; a spent budget is a normal end."""
    training = Training(folder, client, asked)
    with suppress(BudgetExceededError):
        globals()[asked["trainer"]](training)
    training.run.complete()


if __name__ == "__main__":
    run_trainer(train)
