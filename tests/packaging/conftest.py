"""What the folder builds once: the release as `make` does it, and the wheel as the image does it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.dockerfile import ROOT, run_with, stages
from tests.packaging.environments import Installed, locked, new_environment

FETCHED = {"app/dashboard/chart_js/LICENSE.md", "app/dashboard/chart_js/chart.umd.min.js"}
STRAYS = (
    *("epsilon-ledger.db", ".cache/x", "tests/x.py", "sdk/epsilon-ledger.db", "sdk/dist/x.whl"),
    *("app/__pycache__/x.cpython-311.pyc", "sdk/src/epsilon_ledger/__pycache__/x.cpython-311.pyc"),
)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).exists()]


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, with strays, where `make dist` and `make sbom` were called; `dist` has the results."""
    copy = tmp_path_factory.mktemp("release")
    needed = [
        path for path in tracked() if not path.startswith(("docs/", "tests/")) or path.startswith("tests/packaging")
    ]
    for path in [*needed, "tests/__init__.py", *FETCHED]:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    for stray in STRAYS:
        (copy / stray).parent.mkdir(parents=True, exist_ok=True)
        (copy / stray).write_text("a stray")
    (copy / ".venv").symlink_to(ROOT / ".venv")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    # `--assume-old` keeps make from setting up the environment, which stands.
    for target in ("dist", "sbom"):
        subprocess.run(
            ["make", "--assume-old", ".venv/.installed", target], cwd=copy, env=kept, check=True, timeout=120
        )
    return copy


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel beside the locked packages, as in the image."""
    folder = tmp_path_factory.mktemp("image")
    _, build, _ = stages()
    source = folder / "src"
    for path in (Path(item) for instruction in build if instruction.name == "COPY" for item in instruction.sources):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, source / path, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(ROOT / path, source / path)
    target = new_environment(folder, locked("requirements.lock"))
    steps = run_with(build, "hatchling build")
    here = steps.replace("/opt/build/bin/python", sys.executable).replace("/opt/epsilon-ledger", str(target))
    assert "/opt" not in here.replace(str(folder), "").replace(sys.executable, "")
    subprocess.run(["sh", "-c", here], cwd=source, env=os.environ | {"PIP_NO_INDEX": "1"}, check=True)
    (wheel,) = (source / "wheels").iterdir()
    return Installed(wheel, target / "bin")
