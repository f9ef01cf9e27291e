"""The contract of an adapter, for JAX with the noise of Optax and of jax-privacy."""
# ruff: noqa: ANN401 - arrays and trees

from functools import cache
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
WIDTH, MOVED = 256, 4
"""Numbers of each parameter, and how many of them the canary moves."""


class JaxScript(Script):
    """A training with one fixed seed for its noise, in what is released and in the state that it hands on."""

    bound = 0.5
    probability = 1.0

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        self.rate = self.probability
        self.data = np.zeros((N, WIDTH), np.float32)
        self.data[0, :MOVED] = 1e3 * self.canary
        self.params: Any = {"w": jnp.zeros(WIDTH)}
        self.noise, self.function, self.how = self.make(self.noise_multiplier)
        self.state = self.noise.init(self.params)
        self.stepped = authorized(self.function, run, noise=self.noise, batches=self.probability, **self.how)
        self.first = self.state
        self.batches = self.stepped.batch_iterator(N)
        self.indices: Any = None

    @classmethod
    def make(cls, noise_multiplier: float) -> tuple[Any, Any, dict[str, Any]]:
        """Make the noise, the step that adds it, and what else its charge is read from."""
        raise NotImplementedError

    def draw(self) -> None:
        self.indices = next(self.batches)
        self.drawn += 1

    def step(self) -> None:
        self.step_with(self.state)

    def step_with(self, state: Any) -> None:
        """Step with a state of the noise."""
        params, state = self.stepped(self.params, state, self.sample())
        self.note(self.flat(self.params) - self.flat(params))
        self.params, self.state = params, state

    def sample(self) -> NDArray[Any]:
        """Return the records drawn last, and zeros up to one size: they have no gradient."""
        x = np.zeros_like(self.data)
        x[: len(self.indices)] = self.data[np.sort(self.indices)]
        return x

    def quiet(self, release: NDArray[Any]) -> NDArray[Any]:
        return release[MOVED:WIDTH]

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
        self.params = self.params | {"x": jnp.zeros(WIDTH)}

    def evaluate(self) -> None:
        assert self.data.size, "the data are the script's own"


def is_typed(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


class PrivatizerScript(JaxScript):
    @classmethod
    @cache
    def make(cls, noise_multiplier: float) -> tuple[Any, Any, dict[str, Any]]:
        clipped = jax_privacy.clipped_grad(cls.loss, l2_clip_norm=cls.bound)
        noise = noise_addition.gaussian_privatizer(
            stddev=noise_multiplier * cls.bound, prng_key=jax.random.PRNGKey(SEED)
        )

        def step(params: Any, state: Any, x: Any) -> Any:
            noisy, state = noise.update(clipped(params, x), state)
            return optax.apply_updates(params, jax.tree.map(jnp.negative, noisy)), state

        return noise, jax.jit(step), {"clipped_grad": clipped}


class OptaxScript(JaxScript):
    @classmethod
    @cache
    def make(cls, noise_multiplier: float) -> tuple[Any, Any, dict[str, Any]]:
        noise = optax.contrib.differentially_private_aggregate(cls.bound, noise_multiplier, key=jax.random.key(SEED))
        optimizer = optax.chain(noise, optax.sgd(float(N)))

        def step(params: Any, state: Any, x: Any) -> Any:
            gradients = jax.vmap(jax.grad(cls.loss), in_axes=(None, 0))(params, x)
            updates, state = optimizer.update(gradients, state)
            return optax.apply_updates(params, updates), state

        return optimizer, jax.jit(step), {}


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
