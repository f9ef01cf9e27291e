"""The example about clipping and noise, on a few settings."""

import json
from pathlib import Path
from statistics import median

from tests.conftest import LiveServer
from tests.examples.example_runner import example, is_picture


def test_clipping_costs_accuracy_and_noise_saves_epsilon(live_server: LiveServer, tmp_path: Path) -> None:
    options = ["--clipping-norms", "0.01", "1", "--noise-multipliers", "2", "16", "--seeds", "1", "--steps", "30"]
    said = example(live_server, "federated_hyperparameters", tmp_path / "out", *options)
    found = json.loads((tmp_path / "out" / "hyperparameters.json").read_text())
    biased, fair = found["clipping"]
    assert biased["epsilon"] == fair["epsilon"]
    assert median(biased["accuracies"]) < median(fair["accuracies"]) - 0.1
    quiet, loud = found["noise"]
    assert quiet["epsilon"] > 5 * loud["epsilon"]
    assert found["epsilon_of_all"] > max(each["epsilon"] for each in (*found["clipping"], *found["noise"]))
    assert f"cost epsilon {found['epsilon_of_all']:.1f}" in said
    assert is_picture(tmp_path / "out" / "hyperparameters.png")
