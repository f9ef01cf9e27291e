"""The locks: what `make` installs for the service, for its developers, and for the tests of the trainers' adapters."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.dockerfile import ROOT

CHARTS, DEV, DOCS, GENERATOR, MUTATIONS, TORCH, CUDA, CPU, FRAMEWORKS, FLOWER = (
    f"requirements-{name}.lock"
    for name in (
        *("charts", "dev", "docs", "generator", "mutations"),
        *("torch", "cuda", "torch-cpu", "frameworks", "flower"),
    )
)


def entries(lock: str) -> list[Requirement]:
    lines = (ROOT / lock).read_text().splitlines()
    return [Requirement(line.removesuffix("\\")) for line in lines if line[:1].isalnum()]


def pinned(lock: str) -> dict[str, set[Version]]:
    """Each name with its versions: one for each range of Pythons."""
    found: dict[str, set[Version]] = {}
    for entry in entries(lock):
        (specifier,) = entry.specifier
        assert specifier.operator == "=="
        found.setdefault(canonicalize_name(entry.name), set()).add(Version(specifier.version))
    return found


def project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("lock", "at_least"),
    [
        ("requirements.lock", 21),
        (CHARTS, 9),
        (DEV, 21),
        (DOCS, 10),
        (GENERATOR, 20),
        (MUTATIONS, 10),
        (TORCH, 21),
        (CUDA, 10),
        (CPU, 1),
        (FRAMEWORKS, 40),
        (FLOWER, 40),
    ],
)
def test_the_locks_name_no_registry_and_hash_everything(lock: str, at_least: int) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    hashed = re.findall(r"(?m)^([a-zA-Z0-9]\S*==\S+)(?: ;[^\\\n]*)? \\\n    --hash=sha256:[0-9a-f]{64}", text)
    assert len(hashed) == len(re.findall(r"(?m)^\S", text)) >= at_least


@pytest.mark.parametrize("lock", ["requirements.lock", CHARTS, DOCS, MUTATIONS, TORCH, CUDA, FRAMEWORKS])
def test_no_lock_changes_what_the_development_lock_installs(lock: str) -> None:
    development = pinned(DEV)
    shared = {name: versions for name, versions in pinned(lock).items() if name in development}
    assert shared == {name: development[name] for name in shared}


def test_the_cpu_build_of_torch_is_of_the_locked_version() -> None:
    ((name, versions),) = pinned(CPU).items()
    (build,) = versions
    assert (name, build.local) == ("torch", "cpu")
    assert pinned(TORCH)["torch"] == {Version(build.public)}


def test_the_other_frameworks_leave_torch_as_it_is() -> None:
    assert not set(pinned(FRAMEWORKS)) & {"torch", "lightning", "opacus", *pinned(CUDA)}


def test_cuda_is_apart_from_what_everybody_needs() -> None:
    assert not [name for name in pinned(TORCH) if name.startswith(("cuda", "nvidia", "triton"))]
    assert all(name.startswith(("cuda", "nvidia", "triton")) for name in pinned(CUDA))
    assert not {"torch", "opacus", "lightning"} & set(pinned(DEV))


@pytest.mark.parametrize(
    ("group", "lock"),
    [
        ("dev", DEV),
        ("docs", DOCS),
        ("generator", GENERATOR),
        ("mutations", MUTATIONS),
        ("torch", TORCH),
        ("frameworks", FRAMEWORKS),
        ("flower", FLOWER),
    ],
)
def test_each_dependency_group_is_locked_whole(group: str, lock: str) -> None:
    _are_met(project(".")["dependency-groups"][group], pinned(lock))


def test_the_image_has_what_production_needs_and_pictures_only_if_they_are_asked_for() -> None:
    production, pictures = pinned("requirements.lock"), pinned(CHARTS)
    extras = project(".")["project"]["optional-dependencies"]
    _are_met([*project(".")["project"]["dependencies"], *extras["postgresql"], *extras["telemetry"]], production)
    _are_met(extras["charts"], pictures)
    assert not {"matplotlib", "scikit-learn"} & set(production)
    assert not set(production) & set(pictures)


def test_what_every_extra_of_the_client_needs_is_locked_for_its_tests() -> None:
    extras = project("sdk")["project"]["optional-dependencies"]
    locked = pinned(FLOWER) | pinned(FRAMEWORKS) | pinned(TORCH) | pinned(DEV)
    unlocked = {"mindspore"}  # 800 MB: its adapter is tested where it is installed
    wanted = [item for extra in extras.values() for item in extra if Requirement(item).name not in unlocked]
    assert len(wanted) > 15
    _are_met(wanted, locked)


def test_make_installs_the_frameworks_and_the_generator_for_the_tests_and_not_for_a_newcomer() -> None:
    makefile = (ROOT / "Makefile").read_text()
    needs = dict(re.findall(r"(?m)^([a-z]+): (\$.*) ##", makefile))
    assert needs["test"] == "$(FRAMEWORKS) $(FLOWER) $(GENERATOR)"
    assert {needs[target] for target in ("setup", "demo", "run", "check")} == {"$(STAMP)"}


def _are_met(wanted: list[str], found: dict[str, set[Version]]) -> None:
    for requirement in map(Requirement, wanted):
        versions = found[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), requirement
