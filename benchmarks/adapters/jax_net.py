"""JAX: a network of two layers for MNIST, one jitted DP-SGD step of a padded Poisson sample of about 64 images."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.adapters.jax_optax import poisson_draws
from epsilon_ledger import Run
from epsilon_ledger.jax import authorized, secret_key

RECORDS, BATCH, SIZE, NOISE = 6_400, 64, 128, 10.0


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, NOISE, key=secret_key()), optax.sgd(0.1)
    )

    def loss(params: Any, x: Any, label: Any, weight: Any) -> Any:  # noqa: ANN401 - arrays
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        return -weight * jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])[label]

    def update(params: Any, state: Any, *batch: Any) -> Any:  # noqa: ANN401 - as above
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(params, *batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    step: Any = jax.jit(update, donate_argnums=(0, 1))
    draws: Iterator[Any] = poisson_draws(RECORDS, BATCH / RECORDS)
    if run is not None:
        step = authorized(step, run, noise=optimizer, batches=BATCH / RECORDS)
        draws = step.batch_iterator(RECORDS)
    data = np.random.default_rng(0).normal(size=(RECORDS, 784)).astype(np.float32)
    labels = np.arange(RECORDS) % 10
    shapes = {"w1": (784, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
    params = {name: 0.01 * jax.random.normal(secret_key(), shape) for name, shape in shapes.items()}
    state = optimizer.init(params)
    for indices in draws:
        padded = np.pad(indices, (0, SIZE - len(indices)))
        weights = (np.arange(SIZE) < len(indices)).astype(np.float32)
        params, state = step(params, state, data[padded], labels[padded], weights)
        params["w1"].block_until_ready()
        yield
