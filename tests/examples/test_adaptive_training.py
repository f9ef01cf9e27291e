"""The example of decaying noise and adaptive clipping, against a real server."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.conftest import LiveServer
from tests.examples.example_runner import example, is_picture
from tests.soak import thinned

NOISES = ["constant", "decay, time", "decay, step", "decay, exp", "clipping, linear", "clipping, geometric"]
OF_EACH_KIND = [NOISES[0], NOISES[3], NOISES[5]]
OPTIMIZERS = ["SGD", "momentum", "Adam"]
SMALL = ("--norms", "0.5", "4", "--seeds")


@pytest.mark.parametrize(
    ("noises", "optimizers", "seeds", "steps"),
    thinned([(OF_EACH_KIND, ["Adam"], 1, 20), (OF_EACH_KIND, ["Adam"], 1, 150), (NOISES, OPTIMIZERS, 2, 150)], 3),
    ids=["one of each kind, few steps", "one of each kind", "all"],
)
def test_every_training_spends_same_and_learns(
    live_server: LiveServer, tmp_path: Path, noises: list[str], optimizers: list[str], seeds: int, steps: int
) -> None:
    chosen = ["--noises", *noises, "--optimizers", *optimizers, *SMALL, str(seeds)]
    said = example(live_server, "adaptive_training", tmp_path / "out", *chosen, STEPS=steps)
    trainings = json.loads((tmp_path / "out" / "adaptive.json").read_text())
    best = [each for each in trainings if each["chosen"]]
    assert [(each["noise"], each["optimizer"], each["seed"]) for each in best] == list(
        product(noises, optimizers, range(seeds))
    )
    for each in trainings:
        # As much as is allowed, and not more; the limit that is needed is a little above epsilon.
        assert 1.98 < each["epsilon"] <= 2.0
        assert each["epsilon"] <= 2.0
        assert len(each["accuracy"]) == len(each["clipping_norm"]) == steps
        assert each["accuracy"][-1] > (0.6 if steps == 150 else 0.5)
    first = {each["noise"]: each["noise_multiplier"] for each in trainings}
    assert all(first[name] > first["constant"] for name in noises[1:])
    for each in trainings:
        adapts = each["noise"].startswith("clipping")
        assert (len(set(each["clipping_norm"])) > 1) is adapts
        assert not adapts or each["clipping_norm"][-1] < 2.0
    # Constant noise and adaptive clipping are trained at every norm, decaying noise at the chosen one.
    for noise, optimizer in product(noises, optimizers):
        norms = {each["norm"] for each in trainings if (each["noise"], each["optimizer"]) == (noise, optimizer)}
        assert len(norms) == (1 if noise.startswith("decay") else 2)
    assert "Against constant noise, seed by seed" in said
    assert "chosen on public digits" in said
    assert f"All {len(trainings)} trainings together cost the same people epsilon" in said
    assert is_picture(tmp_path / "out" / "adaptive.png")
