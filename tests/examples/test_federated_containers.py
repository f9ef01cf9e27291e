"""The federated example on several machines: its compose file and image, and its roles as processes of their own."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema.validators import validator_for

from tests.conftest import LiveServer
from tests.examples.example_runner import EXAMPLES
from tests.fork_server import ForkServer, run

FOLDER = EXAMPLES / "federated"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
DOCKERFILE = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
PATH = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
PARTIES = {"party-a": "A", "party-b": "B", "party-c": "C"}


def command(service: str, address: str) -> list[str]:
    """The command of a service, with the coordinator on this machine."""
    words = [str(word) for word in COMPOSE["services"][service]["command"]]
    words[words.index("--address") + 1] = address
    return [sys.executable, str(EXAMPLES / "federated_logistic_regression.py"), *words]


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    common = os.environ | {"FEDERATION_KEY": "shared", "MPLCONFIGDIR": str(tmp_path)}
    words = command("coordinator", address)
    words[words.index("--out") + 1] = str(tmp_path / "results")
    keys = {service: live_server.key("admin", f"hospital {name}") for service, name in PARTIES.items()}
    with ExitStack() as processes:

        def start(words: list[str], **variables: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*words, "--max-iter", "10"], env=common | variables, stdout=subprocess.PIPE, text=True
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        coordinator = start(words)
        parties = [
            start(command(service, address), EPSILON_LEDGER_URL=live_server.url, EPSILON_LEDGER_API_KEY=keys[service])
            for service in PARTIES
        ]
        said = [process.communicate(timeout=300)[0] for process in (coordinator, *parties)]
        assert [process.returncode for process in (coordinator, *parties)] == [0, 0, 0, 0], said
    found = json.loads((tmp_path / "results" / "train_indicator.json").read_text())
    assert [each["steps"] for each in found["privacy"]] == [10, 10, 10]
    assert len(found["rounds"]["accuracy"]) == 2
    assert np.load(tmp_path / "results" / "model.npz")["weights"].shape == (31,)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """The process that has imported what the example does, which takes it seconds."""
    server = ForkServer("matplotlib.pyplot", "sklearn.metrics", "federated_party", environment={"PYTHONPATH": PATH})
    yield server
    server.close()


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
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"max_iters": 5}')
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "FEDERATION_KEY"}
    done = run("federated_logistic_regression", *options, environment=environment, timeout=60, server=forks)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
