"""The contract of an adapter, for JAX with the noise of Optax and of jax-privacy."""
# ruff: noqa: ANN401 - arrays and trees

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition
from numpy.typing import NDArray

from epsilon_ledger.jax import authorized
from tests.adapter_contract import AdapterContract, Script
from tests.sdk.fake_ledger import FakeRun, N

SEED = 7
"""Of the noise: scripts choose one."""


class JaxScript(Script):
    """A training with one fixed seed for its noise, in what is released and in the state that it hands on."""

    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        self.data = np.zeros((N, 16), np.float32)
        self.data[0] = 1e3 * self.canary
        self.params: Any = {"w": jnp.zeros(16)}
        self.state, self.stepped = self.make()
        self.first = self.state
        self.batches = self.stepped.batch_iterator(N)
        self.indices: Any = None

    def make(self) -> tuple[Any, Any]:
        """Make the state of the noise, and the step that is charged."""
        raise NotImplementedError

    def draw(self) -> None:
        self.indices = next(self.batches)
        self.drawn += 1

    def step(self) -> None:
        params, state = self.stepped(self.params, self.state, self.data[np.sort(self.indices)])
        self.releases.append(self.flat(self.params) - self.flat(params))
        self.params, self.state = params, state

    def parameters(self) -> NDArray[Any]:
        return self.flat(self.params)

    @staticmethod
    def flat(params: Any) -> NDArray[Any]:
        return np.concatenate([np.array(leaf, np.float64) for leaf in jax.tree.leaves(params)])

    @staticmethod
    def loss(params: Any, x: Any) -> Any:
        return sum(jnp.sum(x @ leaf) for leaf in jax.tree.leaves(params))

    def repeat_noise(self) -> None:
        self.state = jax.tree.map(jnp.copy, self.first)

    def checkpoint(self) -> object:
        """Keep the words of keys, as files have them."""
        return jax.tree.map(np.array, (self.params, self.words(self.state)))

    def restore(self, state: Any) -> None:
        params, noise = jax.tree.map(jnp.array, state)
        self.params, self.state = params, self.keys(noise)

    @staticmethod
    def words(state: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_typed(leaf) else leaf, state)

    def keys(self, state: Any) -> Any:
        return jax.tree.map(
            lambda leaf, like: jax.random.wrap_key_data(leaf) if is_typed(like) else leaf, state, self.state
        )

    def add_parameters(self) -> None:
        self.params = self.params | {"added": jnp.zeros(16)}

    def evaluate(self) -> None:
        assert self.data.size, "the data are the script's own"


def is_typed(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


class PrivatizerScript(JaxScript):
    def make(self) -> tuple[Any, Any]:
        clipped = jax_privacy.clipped_grad(self.loss, l2_clip_norm=self.bound)
        noise = noise_addition.gaussian_privatizer(
            stddev=self.noise_multiplier * self.bound, prng_key=jax.random.PRNGKey(SEED)
        )

        def step(params: Any, state: Any, x: Any) -> Any:
            noisy, state = noise.update(clipped(params, x), state)
            return optax.apply_updates(params, jax.tree.map(jnp.negative, noisy)), state

        return noise.init(self.params), authorized(
            jax.jit(step), self.run, noise=noise, clipped_grad=clipped, batches=1.0
        )


class OptaxScript(JaxScript):
    def make(self) -> tuple[Any, Any]:
        noise = optax.contrib.differentially_private_aggregate(
            self.bound, self.noise_multiplier, key=jax.random.key(SEED)
        )
        optimizer = optax.chain(noise, optax.sgd(float(N)))

        def step(params: Any, state: Any, x: Any) -> Any:
            gradients = jax.vmap(jax.grad(self.loss), in_axes=(None, 0))(params, x)
            updates, state = optimizer.update(gradients, state)
            return optax.apply_updates(params, updates), state

        return optimizer.init(self.params), authorized(jax.jit(step), self.run, noise=optimizer, batches=1.0)


NOT_APPLICABLE = {
    "test_repeated_record_moves_release_by_one_norm_or_stops_training": "its iterator draws each place once; what a "
    "script makes of the places is not seen",
}


class TestPrivatizer(AdapterContract):
    script = PrivatizerScript
    NOT_APPLICABLE: ClassVar = NOT_APPLICABLE


class TestOptax(AdapterContract):
    script = OptaxScript
    NOT_APPLICABLE: ClassVar = NOT_APPLICABLE
