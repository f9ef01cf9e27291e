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


@pytest.mark.parametrize(
    ("noises", "optimizers"), thinned([(OF_EACH_KIND, ["Adam"]), (NOISES, OPTIMIZERS)], 2), ids="-".join
)
def test_every_training_spends_the_same_and_learns(
    live_server: LiveServer, tmp_path: Path, noises: list[str], optimizers: list[str]
) -> None:
    chosen = ["--noises", *noises, "--optimizers", *optimizers]
    said = example(live_server, "adaptive_training.py", tmp_path / "out", *chosen)
    trainings = json.loads((tmp_path / "out" / "adaptive.json").read_text())
    assert [(each["noise"], each["optimizer"]) for each in trainings] == list(product(noises, optimizers))
    for each in trainings:
        # As much as is allowed, to the digits of the noise multiplier, and not more.
        assert each["epsilon"] == pytest.approx(2.0, rel=1e-4)
        assert each["epsilon"] <= 2.0
        assert len(each["accuracy"]) == len(each["clipping_norm"]) == 150
        assert each["accuracy"][-1] > 0.6
    first = {each["noise"]: each["noise_multiplier"] for each in trainings}
    assert all(first[name] > first["constant"] for name in noises[1:])
    for each in trainings:
        constant = each["noise"].startswith(("constant", "decay"))
        assert (len(set(each["clipping_norm"])) == 1) is constant
        assert constant or each["clipping_norm"][-1] < 2.0
    assert f"{'clipping, geometric':24}" in said
    assert "together cost the same people epsilon" in said
    assert is_picture(tmp_path / "out" / "adaptive.png")
