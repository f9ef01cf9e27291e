"""The client's wheel: httpx2 is enough for it, and what else it can do says what it needs."""

import json
import subprocess
import sys

from tests.packaging.dockerfile import ROOT

FRAMEWORKS = (
    *("accelerate", "cryptography", "dp_accounting", "flwr", "jax", "jax_privacy", "keras", "lightning", "mindspore"),
    *("mlflow", "numpy", "nvflare", "opacus", "optax", "peft", "pytorch_lightning", "torch", "transformers", "wandb"),
)
ADAPTERS = (
    *("dp_accounting", "flower", "jax", "keras", "lightning", "mindspore", "mlflow", "nvflare", "opacus"),
    *("transformers", "wandb"),
)
FIRST = {"flower": "flwr", "lightning": "opacus", "nvflare": "numpy"}
"""What is missed first, if it has another name than the adapter."""

PROGRAM = f"""
import importlib, json, sys
import epsilon_ledger
imported = sorted({{name.partition(".")[0] for name in sys.modules}})
# None in sys.modules is how Python itself marks a module that is not to be found.
sys.modules.update(dict.fromkeys({FRAMEWORKS}))
missed = {{}}
for adapter in {ADAPTERS}:
    try:
        importlib.import_module(f"epsilon_ledger.{{adapter}}")
    except ModuleNotFoundError as error:
        missed[adapter] = str(error)
print(json.dumps([imported, missed]))
"""


def test_client_imports_no_framework_and_an_adapter_names_the_one_that_is_missing() -> None:
    asked = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    imported, missed = json.loads(asked.stdout)
    assert not set(FRAMEWORKS) & set(imported)
    assert missed.keys() == set(ADAPTERS)
    for adapter, message in missed.items():
        assert FIRST.get(adapter, adapter) in message or "torch" in message
        source = (ROOT / "sdk" / "src" / "epsilon_ledger" / f"{adapter}.py").read_text()
        assert f'pip install "epsilon-ledger-client[{adapter.replace("_", "-")}]"' in source.split('"""')[1]
