"""A training with JAX: Optax's noise on padded Poisson samples."""

from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.jax import authorized, secret_key
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, PROBABILITY, SIZE, NOISE = 64, 0.25, 64, 20.0


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, NOISE, key=secret_key()), optax.sgd(0.1)
    )

    def loss(params: Any, x: Any, weight: Any) -> Any:  # noqa: ANN401 - arrays
        return weight * (x @ params) ** 2

    def update(params: Any, state: Any, x: Any, weights: Any) -> Any:  # noqa: ANN401 - as above
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    step = authorized(jax.jit(update, donate_argnums=(0, 1)), run, noise=optimizer, batches=PROBABILITY)
    data = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    params = jnp.zeros(4)
    state = optimizer.init(params)
    with suppress(BudgetExceededError), run:
        for indices in step.batch_iterator(RECORDS):
            if (run.step or 0) >= asked["steps"]:
                return
            weights = (np.arange(SIZE) < len(indices)).astype(np.float32)
            params, state = step(params, state, data[np.pad(indices, (0, SIZE - len(indices)))], weights)
            params.block_until_ready()  # here it is released
            folder.released(poisson_sampled(PROBABILITY, gaussian(NOISE)))
            if run.next_step % CHECKPOINT_STEPS == 0:
                folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
