"""Random scripts: hostile ones get nothing that is not charged, honest ones are not stopped.

`make soak` plays 125 of each kind and sort.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import keras
import lightning.pytorch as lightning
import numpy as np
import pytest
import torch

from tests.frameworks import jax_actions, keras_actions, opacus_honest, opacus_hostile
from tests.frameworks.ranks import TORCH, run_ranks
from tests.frameworks.test_jax_contract import OptaxScript, PrivatizerScript
from tests.frameworks.test_keras_contract import KerasScript
from tests.frameworks.test_lightning_contract import LightningScript
from tests.frameworks.test_opacus_contract import (
    AdaptiveScript,
    GhostScript,
    OpacusScript,
    PerLayerScript,
    SeededScript,
)
from tests.random_scripts import Actions, Play, RandomScripts

ALL, IN_SLICE, IN_TEST = 125, 25, 5
"""Scripts of each kind and sort, of one test of `make soak`, and of `make test-frameworks`."""


class Flat(RandomScripts):
    script = OpacusScript
    seed = staticmethod(lambda: torch.manual_seed(7))
    honest, hostile = opacus_honest.HONEST, opacus_hostile.HOSTILE


class Seeded(Flat):
    script = SeededScript


class PerLayer(Flat):
    script = PerLayerScript


class Ghost(Flat):
    script = GhostScript


class Adaptive(Flat):
    # Opacus forgets counts of physical batches, and fails at an empty one.
    script = AdaptiveScript
    honest: ClassVar[Actions] = {
        name: action for name, action in opacus_honest.HONEST.items() if name not in {"pieces", "halves", "rate"}
    }


class Lightning(Flat):
    script = LightningScript
    seed = staticmethod(lambda: lightning.seed_everything(42, verbose=False))
    honest, hostile = opacus_honest.WITHIN, opacus_hostile.BROKEN
    processes = ("save", "restart", "resume", "add parameters")


class SampledPrivatizer(PrivatizerScript):
    probability = 0.5


class Privatizer(RandomScripts):
    script = SampledPrivatizer
    honest, hostile = jax_actions.HONEST, jax_actions.HOSTILE
    processes = ("save", "restart", "resume", "restore", "add parameters")


class SampledOptax(OptaxScript):
    probability = 0.5


class Optax(RandomScripts):
    script = SampledOptax
    honest, hostile = jax_actions.HONEST, jax_actions.HOSTILE
    processes = ("save", "restart", "resume", "restore", "add parameters")


class Keras(RandomScripts):
    script = KerasScript
    seed = staticmethod(lambda: keras.utils.set_random_seed(7))
    honest, hostile = keras_actions.HONEST, keras_actions.HOSTILE
    processes = ("save", "restart", "resume", "restore", "add parameters")


KINDS: Final[dict[str, type[RandomScripts]]] = {
    "flat": Flat,
    "seeded": Seeded,
    "per_layer": PerLayer,
    "ghost": Ghost,
    "adaptive": Adaptive,
    "lightning": Lightning,
    "privatizer": Privatizer,
    "optax": Optax,
    "keras": Keras,
}
FEW: Final[dict[str, int]] = {"lightning": 1, "keras": 1}
"""Kinds whose scripts take a second each."""


def cases() -> Iterator[Any]:
    """Yield each kind with its first seeds, and the others in slices for `make soak`."""
    for kind in KINDS:
        first = FEW.get(kind, IN_TEST)
        yield kind, range(first)
        for start in range(first, ALL, IN_SLICE):
            yield pytest.param(kind, range(start, min(ALL, start + IN_SLICE)), marks=pytest.mark.soak)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sort", ["honest", "hostile"])
@pytest.mark.parametrize(("kind", "seeds"), list(cases()))
def test_random_script_is_charged_and_goes_on_if_it_is_honest(kind: str, seeds: range, sort: str) -> None:
    for seed in seeds:
        play = Play(KINDS[kind], seed, honest=sort == "honest")
        try:
            play.play()
            play.judge()
        except Exception as error:
            error.add_note(f"{kind}, {sort}, seed {seed}: {play.trace}")
            raise
        finally:
            play.end()


def test_noise_that_a_script_of_keras_raises_is_traced_anew() -> None:
    """JAX kept the trace of the model's step, whose smaller noise was charged as the larger one."""
    play = Play(Keras, 1, honest=False)
    play.act("step")
    config = play.script.model._dp_params
    object.__setattr__(config, "noise_multiplier", 10 * config.noise_multiplier)
    play.act("step")
    before, after = (float(np.std(play.script.quiet(release))) for release in play.script.releases)
    assert 8 < after / before < 12
    play.judge()
    play.end()


@pytest.mark.parametrize(
    "seeds",
    [range(3), *(pytest.param(range(at, at + IN_SLICE), marks=pytest.mark.soak) for at in range(3, ALL, IN_SLICE))],
)
def test_random_script_of_two_ranks_is_charged_and_goes_on_if_it_is_honest(seeds: range, tmp_path: Path) -> None:
    broken = run_ranks("tests.frameworks.rank_scripts", tmp_path, seeds.start, seeds.stop, imported=TORCH)
    assert broken == [[], []]
