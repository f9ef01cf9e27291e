"""The wheel, built as the image does it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.dockerfile import ROOT, run_with, stages
from tests.packaging.environments import Installed, locked, new_environment


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
