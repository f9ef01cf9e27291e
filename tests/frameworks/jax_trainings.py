"""Trainings of JAX with the noise of jax-privacy and of Optax, for the tests of the adapter."""
# ruff: noqa: ANN401 - arrays and trees

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition
from jax_privacy.batch_selection import CyclicPoissonSampling, pad_to_multiple_of

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.jax import authorized, secret_key

N, CLIP, NOISE, PROBABILITY = 64, 1.5, 2.0, 0.25
SIZE = 48
"""No sample of the tests exceeds it: 32 more than the mean of 16, nine standard deviations."""
DATA = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
STEP = poisson_sampled(PROBABILITY, gaussian(NOISE))
POISSON = CyclicPoissonSampling(sampling_prob=PROBABILITY, iterations=8)


def loss(params: Any, x: Any) -> Any:
    return jnp.sum(x @ params["w"]) ** 2


GRAD = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=N * PROBABILITY)
OPTIMIZER = optax.adam(0.1)


def privatizer(key: Any) -> Any:
    return noise_addition.gaussian_privatizer(stddev=NOISE * GRAD.sensitivity(), prng_key=key)


def plain(params: Any, opt_state: Any, noise_state: Any, x: Any, is_padding: Any) -> Any:
    """Take a step, as jax-privacy's documentation writes it."""
    clipped = GRAD(params, x, is_padding_example=is_padding)
    noisy, noise_state = privatizer(0).update(clipped, noise_state)
    updates, opt_state = OPTIMIZER.update(noisy, opt_state)
    return optax.apply_updates(params, updates), opt_state, noise_state


DONATED = jax.jit(plain, donate_argnums=(0, 1, 2))


@dataclass
class Private:
    """A training with jax-privacy."""

    key: Any = field(default_factory=secret_key)

    def __post_init__(self) -> None:
        self.privatizer = privatizer(self.key)
        params = {"w": jnp.zeros(4)}
        self.state = (params, OPTIMIZER.init(params), self.privatizer.init(params))

    def authorized(self, run: Any, step: Any = DONATED, **how: Any) -> Any:
        return authorized(step, run, **{"noise": self.privatizer, "clipped_grad": GRAD, "batches": POISSON} | how)

    def train(self, step: Callable[..., Any], batches: Iterator[Any]) -> None:
        for indices in batches:
            self.take(step, indices)

    def take(self, step: Callable[..., Any], indices: Any) -> None:
        padded = pad_to_multiple_of(indices, SIZE)
        self.state = step(*self.state, DATA[padded], padded < 0)


def with_optax(noise: float) -> tuple[Any, Callable[..., Any]]:
    """Make an optimizer with Optax's noise, and its step on a padded sample, whose padding has no gradient."""
    private = optax.contrib.differentially_private_aggregate(CLIP, noise, key=secret_key())
    optimizer = optax.chain(private, optax.sgd(0.1))

    def update(params: Any, state: Any, x: Any, weights: Any) -> Any:
        one = jax.grad(lambda params, x, weight: weight * loss(params, x[None]))
        updates, state = optimizer.update(jax.vmap(one, in_axes=(None, 0, 0))(params, x, weights), state)
        return optax.apply_updates(params, updates), state

    return optimizer, update


def padded(indices: Any, size: int) -> tuple[Any, Any]:
    """Return the records of a sample, and their weights; those of the padding are 0."""
    return DATA[np.pad(indices, (0, size - len(indices)))], (np.arange(size) < len(indices)).astype(np.float32)
