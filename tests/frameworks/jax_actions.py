"""What random scripts of JAX do: `HONEST` what they may, `HOSTILE` what goes wrong."""
# ruff: noqa: ANN401 - scripts

from functools import cache
from itertools import islice
from random import Random
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from epsilon_ledger.jax import authorized
from tests import random_scripts
from tests.random_scripts import Action, Actions
from tests.sdk.fake_ledger import N

# Honest.


def new_epoch(script: Any, _: Random) -> None:
    script.batches = script.stepped.batch_iterator(N)


def break_at_limit(script: Any, dice: Random) -> None:
    """Leave a loop by the number of steps, before a step."""
    limit = dice.randrange(1, 4)
    new_epoch(script, dice)
    for number, indices in enumerate(script.batches):
        script.indices = indices
        script.drawn += 1
        if number == limit:
            break
        script.take()
    new_epoch(script, dice)


def slice_of_epoch(script: Any, dice: Random) -> None:
    new_epoch(script, dice)
    for indices in islice(script.batches, dice.randrange(1, 4)):
        script.indices = indices
        script.drawn += 1
        script.take()


def to_host(script: Any, _: Random) -> None:
    """Move all to the host and back, as checkpoints do."""
    script.take()
    script.restore(script.checkpoint())


def wait(script: Any, _: Random) -> None:
    script.take()
    jax.block_until_ready((script.params, script.state))


def keep_weights(script: Any, _: Random) -> None:
    """Go back to earlier weights, with the newest state of the noise."""
    before = jax.tree.map(jnp.copy, script.params)
    script.take()
    script.params = before


HONEST: Final[Actions] = random_scripts.HONEST | {
    "new epoch": Action(new_epoch, 2),
    "break": Action(break_at_limit, left=1),
    "slice": Action(slice_of_epoch),
    "to host": Action(to_host, draws=True),
    "wait": Action(wait, draws=True),
    "best weights": Action(keep_weights, draws=True),
}

# Hostile.


def skip_by_data(script: Any, _: Random) -> None:
    """Leave out empty samples and those of the canary."""
    if len(script.indices) and 0 not in script.indices:
        script.take()


def leave_by_data(script: Any, dice: Random) -> None:
    if 0 in script.indices:
        new_epoch(script, dice)
    else:
        script.take()


def init_again(script: Any, _: Random) -> None:
    """Make the state of the noise anew at each step."""
    script.step_with(script.noise.init(script.params))


def same_state_twice(script: Any, _: Random) -> None:
    state, params = jax.tree.map(jnp.copy, (script.state, script.params))
    script.take()
    script.draw()
    script.params = params
    script.step_with(state)


def constant_keys(script: Any, _: Random) -> None:
    """Put a constant in the place of each key."""
    script.state = jax.tree.map(
        lambda leaf: jax.random.key(3) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros_like(leaf),
        script.state,
    )
    script.take()


def without_state(script: Any, _: Random) -> None:
    """Hand the step another state than that of the noise."""
    script.step_with(())


@cache
def closing(make: Any, noise_multiplier: float) -> Any:
    """A step that closes over the state of its noise."""
    noise, step, _ = make(noise_multiplier)
    return jax.jit(lambda params, x: step(params, noise.init(params), x))


def close_over(script: Any, _: Random) -> None:
    function = closing(script.make, script.noise_multiplier)
    step = authorized(function, script.run, noise=script.noise, batches=script.probability, **script.how)
    take_of(script, step, lambda found: [found[0]], script.params)


@cache
def scanning(make: Any, noise_multiplier: float) -> Any:
    """A step that takes three noisy ones on one sample, and shows each."""
    _, step, _ = make(noise_multiplier)

    def scan(params: Any, state: Any, x: Any) -> Any:
        def one(carry: Any, _: Any) -> Any:
            carry = step(*carry, x)
            return carry, carry[0]

        return jax.lax.scan(one, (params, state), length=3)

    return jax.jit(scan)


def scan(script: Any, _: Random) -> None:
    function = scanning(script.make, script.noise_multiplier)
    step = authorized(function, script.run, noise=script.noise, batches=script.probability, **script.how)
    each = lambda found: [jax.tree.map(lambda leaf, at=at: leaf[at], found[1]) for at in range(3)]  # noqa: E731
    take_of(script, step, each, script.params, script.noise.init(script.params))


def take_of(script: Any, step: Any, each: Any, *arguments: Any) -> None:
    """Draw for another step of the script, and take it."""
    script.indices = next(step.batch_iterator(N))
    script.drawn += 1
    script.outstanding = 2  # one of each step
    before = script.flat(script.params)
    for params in each(step(*arguments, script.sample())):
        script.note(before - script.flat(params))
        before = script.flat(params)


def other_size(script: Any, _: Random) -> None:
    """Step a sample of another size."""
    full = script.data
    try:
        script.data = full[: N // 2]
        script.indices = np.arange(N // 2)
        script.take()
    finally:
        script.data = full


def two_at_once(script: Any, _: Random) -> None:
    first = script.indices
    script.draw()
    script.indices = np.unique(np.concatenate([first, script.indices]))
    script.take()


HOSTILE: Final[Actions] = (
    {name: action for name, action in HONEST.items() if name not in random_scripts.HONEST}
    | random_scripts.HOSTILE
    | {
        "skip by data": Action(skip_by_data, 2, draws=True),
        "leave by data": Action(leave_by_data, 2, draws=True),
        "init again": Action(init_again, 2, draws=True),
        "same state": Action(same_state_twice, draws=True),
        "constant keys": Action(constant_keys, draws=True),
        "without state": Action(without_state, draws=True),
        "close over": Action(close_over),
        "scan": Action(scan),
        "other size": Action(other_size, draws=True),
        "two at once": Action(two_at_once, draws=True),
    }
)
