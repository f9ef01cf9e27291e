"""The client's wheel: httpx2 is enough for it, and what else it can do says what it needs."""

import json
import subprocess
import sys
import tomllib

import pytest

from tests.packaging.dockerfile import ROOT

FRAMEWORKS = {
    *("accelerate", "cryptography", "dp_accounting", "flwr", "jax", "jax_privacy", "keras", "lightning"),
    *(
        "mindspore",
        "mlflow",
        "numpy",
        "nvflare",
        "opacus",
        "optax",
        "peft",
        "pytorch_lightning",
        "torch",
        "transformers",
        "wandb",
    ),
}
ADAPTERS = [
    *("dp_accounting", "flower", "jax", "keras", "lightning", "mindspore", "mlflow", "nvflare", "opacus"),
    *("transformers", "wandb"),
]
FIRST = {"flower": "flwr", "lightning": "opacus", "nvflare": "numpy"}
"""What is missed first, if it has another name than the adapter."""


def test_the_base_install_needs_httpx2_only() -> None:
    client = tomllib.loads((ROOT / "sdk" / "pyproject.toml").read_text())
    assert client["project"]["dependencies"] == ["httpx2>=2.10"]


def test_importing_the_client_imports_no_framework() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "import epsilon_ledger, json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not FRAMEWORKS & {name.partition(".")[0] for name in json.loads(asked.stdout)}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_without_its_framework_names_what_is_missing(adapter: str) -> None:
    # None in sys.modules is how Python itself marks a module that is not to be found.
    code = f"import sys; sys.modules.update(dict.fromkeys({FRAMEWORKS})); import epsilon_ledger.{adapter}"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    missing = FIRST.get(adapter, adapter)
    last = asked.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert missing in last or "torch" in last
    source = (ROOT / "sdk" / "src" / "epsilon_ledger" / f"{adapter}.py").read_text()
    assert f'pip install "epsilon-ledger-client[{adapter.replace("_", "-")}]"' in source.split('"""')[1]
