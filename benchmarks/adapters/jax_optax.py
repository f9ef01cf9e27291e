"""JAX: a linear model, one jitted DP-SGD step of a padded Poisson sample with Optax's noise."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from epsilon_ledger import Run
from epsilon_ledger.jax import authorized, secret_key

RECORDS, PROBABILITY, SIZE, NOISE = 1_000, 0.01, 64, 10.0


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, NOISE, key=secret_key()), optax.sgd(0.1)
    )

    def loss(params: Any, x: Any, weight: Any) -> Any:  # noqa: ANN401 - arrays
        return weight * jnp.sum((x @ params["w"] + params["b"]) ** 2)

    def update(params: Any, state: Any, x: Any, weights: Any) -> Any:  # noqa: ANN401 - as above
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    step: Any = jax.jit(update, donate_argnums=(0, 1))
    draws: Iterator[Any] = poisson_draws(RECORDS, PROBABILITY)
    if run is not None:
        step = authorized(step, run, noise=optimizer, batches=PROBABILITY)
        draws = step.batch_iterator(RECORDS)
    data = np.random.default_rng(0).normal(size=(RECORDS, 64)).astype(np.float32)
    params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    state = optimizer.init(params)
    for indices in draws:
        weights = (np.arange(SIZE) < len(indices)).astype(np.float32)
        params, state = step(params, state, data[np.pad(indices, (0, SIZE - len(indices)))], weights)
        params["w"].block_until_ready()
        yield


def poisson_draws(records: int, probability: float) -> Iterator[Any]:
    """Draw the samples that the adapter would draw."""
    generator = np.random.default_rng()
    while True:
        size = generator.binomial(records, probability)
        yield generator.choice(records, size=size, replace=False, shuffle=False)
