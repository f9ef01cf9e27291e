"""The federated example on several machines: its compose file and image, and its roles as processes of their own."""

import json
import multiprocessing
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema.validators import validator_for

from tests.conftest import LiveServer
from tests.examples.example_runner import EXAMPLES, module
from tests.postgres import free_port

COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLES / "federated" / "compose.yaml").read_text())
PARTIES = {"party-a": "A", "party-b": "B", "party-c": "C"}


def play(words: list[str], log: Path, variables: dict[str, str]) -> None:
    """Run a role in a fork, which has imported what takes seconds."""
    sys.argv[1:] = words
    os.environ.update(variables)
    with log.open("w") as sys.stdout:
        sys.stderr = sys.stdout
        module("federated_logistic_regression").main()


def test_compose_file_is_valid_and_locked_up() -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    assert list(validator_for(schema)(schema).iter_errors(COMPOSE)) == []
    for name, service in COMPOSE["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service
    assert COMPOSE["services"]["coordinator"]["networks"] == ["federation"]
    assert COMPOSE["networks"]["federation"]["internal"]
    # Each hospital has its own key, and no variable holds one in the file.
    keys = {COMPOSE["services"][party]["environment"]["EPSILON_LEDGER_API_KEY"] for party in PARTIES}
    assert {key.partition(":")[0] for key in keys} == {"${KEY_OF_A", "${KEY_OF_B", "${KEY_OF_C"}


def test_roles_train_together_over_network(live_server: LiveServer, tmp_path: Path) -> None:
    module("federated_logistic_regression")
    fork, address, processes = multiprocessing.get_context("fork"), f"127.0.0.1:{free_port()}", {}
    for service in ("coordinator", *PARTIES):
        words = [str(word) for word in COMPOSE["services"][service]["command"]]
        words[words.index("--address") + 1] = address
        variables = {"FEDERATION_KEY": "shared", "MPLCONFIGDIR": str(tmp_path)}
        if service in PARTIES:
            key = live_server.key("admin", f"hospital {PARTIES[service]}")
            variables |= {"EPSILON_LEDGER_URL": live_server.url, "EPSILON_LEDGER_API_KEY": key}
        else:
            words[words.index("--out") + 1] = str(tmp_path / "results")
        log = tmp_path / f"{service}.log"
        processes[log] = fork.Process(target=play, args=([*words, "--max-iter", "10"], log, variables), daemon=True)
        processes[log].start()
    for log, process in processes.items():
        process.join(300)
        assert process.exitcode == 0, log.read_text()
    found = json.loads((tmp_path / "results" / "train_indicator.json").read_text())
    assert [each["steps"] for each in found["privacy"]] == [10, 10, 10]
    assert len(found["rounds"]["accuracy"]) == 2
    assert np.load(tmp_path / "results" / "model.npz")["weights"].shape == (31,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--delta", "0.01"], "must be below 1/n: A has 120 patients"),
        (["--no-secure-mode"], "secure_mode is false"),
        (["--need-encrypt", "YES"], "need_encrypt"),
        (["--category", "3"], "two classes"),
        (["--feature-names", "mean radius", "shoe size"], "Unknown features: shoe size"),
        (["--role", "party"], "a party needs a --name"),
        (["--role", "coordinator"], "FEDERATION_KEY must hold"),
        (["--config", "config.json"], "unknown keys: max_iters"),
    ],
)
def test_bad_options_end_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"max_iters": 5}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDERATION_KEY", raising=False)
    monkeypatch.setattr("sys.argv", ["federated_logistic_regression.py", *options])
    with pytest.raises(SystemExit) as ended:
        module("federated_logistic_regression").main()
    assert said in f"{ended.value} {capsys.readouterr().err}"
