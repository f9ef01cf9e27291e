"""The example of decaying noise and adaptive clipping, against a real server."""

import importlib
import json
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from epsilon_ledger import LedgerClient, Limit
from tests.conftest import LiveServer
from tests.examples.example_runner import EXAMPLES, example, is_picture
from tests.soak import thinned

NOISES = ["constant", "decay, time", "decay, step", "decay, exp", "clipping, linear", "clipping, geometric"]
OF_EACH_KIND = [NOISES[0], NOISES[3], NOISES[5]]
OPTIMIZERS = ["SGD", "momentum", "Adam"]
SMALL = ("--norms", "0.5", "4", "--seeds")


@pytest.mark.parametrize(
    ("noises", "optimizers", "seeds", "steps"),
    thinned([(OF_EACH_KIND, ["Adam"], 1, 30), (OF_EACH_KIND, ["Adam"], 1, 150), (NOISES, OPTIMIZERS, 2, 150)], 3),
    ids=["one of each kind, few steps", "one of each kind", "all"],
)
def test_every_training_spends_same_and_learns(
    live_server: LiveServer, tmp_path: Path, noises: list[str], optimizers: list[str], seeds: int, steps: int
) -> None:
    chosen = ["--noises", *noises, "--optimizers", *optimizers, *SMALL, str(seeds)]
    said = example(live_server, "adaptive_training.py", tmp_path / "out", *chosen, STEPS=str(steps))
    trainings = json.loads((tmp_path / "out" / "adaptive.json").read_text())
    best = [each for each in trainings if each["chosen"]]
    assert [(each["noise"], each["optimizer"], each["seed"]) for each in best] == list(
        product(noises, optimizers, range(seeds))
    )
    for each in trainings:
        # As much as is allowed, to the digits of the noise multiplier, and not more.
        assert each["epsilon"] == pytest.approx(2.0, rel=1e-4)
        assert each["epsilon"] <= 2.0
        assert len(each["accuracy"]) == len(each["clipping_norm"]) == steps
        assert each["accuracy"][-1] > 0.6
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


def test_trainers_key_and_budget_are_enough(live_server: LiveServer, tmp_path: Path) -> None:
    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        limit = Limit(3.0, 1e-4)
        ledger.create_population(
            "people", privacy_unit="handwritten digit", neighboring_relation="add_or_remove_one", size=1200, limit=limit
        )
        ledger.create_budget("models", parent="people", limit=limit)
        few = ("--noises", "constant", "--optimizers", "SGD", "--norms", "1", "--seeds", "1")
        asked = ("--budget", "people/models", *few)
        example(live_server, "adaptive_training.py", tmp_path / "out", *asked, role="trainer", STEPS="10")
        # What the Rényi filter needs for the steps that the run's own plan covers.
        assert 2.0 <= ledger.get_budget("people/models").epsilon <= 3.0


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that compares trainings."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("adaptive_results")


def test_better_means_in_every_training(results: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = {
        "constant": (0.80, 0.82, 0.84),
        "decay, time": (0.81, 0.83, 0.85),
        "decay, step": (0.81, 0.83, 0.84),
        "clipping, linear": (0.7, 0.7, 0.7),
    }
    trainings = [
        results.Training(noise, "SGD", 3.0, 1.0, 1.0, seed, chosen=True, accuracy=[accuracy])
        for noise, found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]
    results.conclude(trainings, ["SGD"])
    said = capsys.readouterr().out
    assert "better               decay, time with SGD (+1.0%)\n" in said
    assert "worse                clipping, linear with SGD (-12.0%)\n" in said
    assert "no difference shown  decay, step with SGD (+1.0%)\n" in said
    assert "By chance alone, 0.8 of 3 comparisons would be better or worse." in said
