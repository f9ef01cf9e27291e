"""`make dist` and `make sbom`, as the release workflow calls them, and the commands of the page on releases."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.markdown import fences
from tests.packaging.dockerfile import ROOT

NOT_RUN = {
    "git tag": "it would publish",
    "git push": "it would publish",
    "gh attestation": "needs a release on GitHub",
    "docker buildx": "needs a container engine and a registry",
}
"""By the first two words: commands of the page that no test runs, with the reason."""

NEEDED = (
    "app",
    "hatch_build.py",
    "migrations",
    "sdk",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "requirements.lock",
    "web",
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the two recipes of the Makefile leave, called in a copy of the repository."""
    copy = tmp_path_factory.mktemp("release")
    for name in (*NEEDED, "tests/packaging", "tests/__init__.py"):
        (copy / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        else:
            shutil.copy(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    # `--assume-old` keeps make from setting up the environment, which stands.
    make = ["make", "--assume-old", ".venv/.installed"]
    for target in ("dist", "sbom"):
        subprocess.run([*make, target], cwd=copy, env=kept, check=True, timeout=120)
    return copy / "dist"


def test_a_release_has_wheels_and_sdists_of_both_and_a_bill_of_materials(dist: Path) -> None:
    kinds = sorted(path.name.replace("-0.1.0", "") for path in dist.iterdir())
    assert kinds == [
        "epsilon-ledger.cdx.json",
        "epsilon_ledger-py3-none-any.whl",
        "epsilon_ledger.tar.gz",
        "epsilon_ledger_client-py3-none-any.whl",
        "epsilon_ledger_client.tar.gz",
    ]
    assert all(path.stat().st_size > 1000 for path in dist.iterdir())


@pytest.mark.parametrize(("tag", "accepted"), [("v0.1.0", True), ("v0.1.1", False)])
def test_the_workflow_refuses_a_tag_of_another_version(dist: Path, tag: str, *, accepted: bool) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    done = subprocess.run(["bash", "-e", "-c", script], cwd=dist.parent, env=os.environ | {"TAG": tag}, check=False)
    assert (done.returncode == 0) is accepted


def test_each_command_of_the_page_is_run_or_listed_with_its_reason() -> None:
    page = (ROOT / "docs" / "contributing" / "releases.md").read_text()
    commands = [
        line.strip()
        for fence in fences(page)
        if fence.language == "bash"
        for line in fence.text.splitlines()
        if line.strip()
    ]
    starts = {" ".join(command.split()[:2]) for command in commands}
    assert starts == {*NOT_RUN, "make dist", "make sbom"}
