"""The locks: what `make` installs for the service, for its developers, and for the tests of the trainers' adapters."""

import re
import tomllib
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.sbom import locked_packages
from tests.packaging.dockerfile import ROOT

DEV, DOCS, GENERATOR, MUTATIONS, TORCH, CUDA, CPU, FRAMEWORKS, FLOWER = (
    f"requirements-{name}.lock"
    for name in "dev docs generator mutations torch cuda torch-cpu frameworks flower".split()  # noqa: SIM905
)


@cache
def pinned(lock: str) -> dict[str, set[Version]]:
    """Each name with its versions: one for each range of Pythons; each entry has a hash."""
    found: dict[str, set[Version]] = {}
    for package in locked_packages((ROOT / lock).read_text()):
        found.setdefault(package.name, set()).add(Version(package.version))
    return found


def project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


LEAST = {
    "requirements.lock": 21,
    DEV: 21,
    DOCS: 10,
    GENERATOR: 20,
    MUTATIONS: 10,
    TORCH: 21,
    CUDA: 10,
    CPU: 1,
}


@pytest.mark.parametrize(("lock", "at_least"), [*LEAST.items(), (FRAMEWORKS, 40), (FLOWER, 40)])
def test_lock_names_no_registry_and_hashes_everything(lock: str, at_least: int) -> None:
    text = (ROOT / lock).read_text()
    assert not [word for word in ("://", "--index-url", "--find-links") if word in text]
    assert len(list(locked_packages(text))) == len(re.findall(r"(?m)^\S", text)) >= at_least


@pytest.mark.parametrize("lock", ["requirements.lock", DOCS, MUTATIONS, TORCH, CUDA, FRAMEWORKS])
def test_locks_share_the_versions_of_the_development_lock(lock: str) -> None:
    development = pinned(DEV)
    shared = {name: versions for name, versions in pinned(lock).items() if name in development}
    assert shared == {name: development[name] for name in shared}


def test_cpu_build_of_torch_is_of_the_locked_version() -> None:
    ((name, (build,)),) = pinned(CPU).items()
    assert (name, build.local) == ("torch", "cpu")
    assert pinned(TORCH)["torch"] == {Version(build.public)}


def test_cuda_and_torch_have_locks_of_their_own() -> None:
    assert not set(pinned(FRAMEWORKS)) & {"torch", "lightning", "opacus", *pinned(CUDA)}
    assert not [name for name in pinned(TORCH) if name.startswith(("cuda", "nvidia", "triton"))]
    assert all(name.startswith(("cuda", "nvidia", "triton")) for name in pinned(CUDA))
    assert not {"torch", "opacus", "lightning"} & set(pinned(DEV))


@pytest.mark.parametrize("group", ["dev", "docs", "generator", "mutations", "torch", "frameworks", "flower"])
def test_dependency_group_is_locked_whole(group: str) -> None:
    _are_met(project(".")["dependency-groups"][group], pinned(f"requirements-{group}.lock"))


def test_image_has_the_packages_of_production() -> None:
    production = pinned("requirements.lock")
    extras = project(".")["project"]["optional-dependencies"]
    _are_met([*project(".")["project"]["dependencies"], *extras["postgresql"], *extras["telemetry"]], production)
    assert not {"matplotlib", "scikit-learn"} & set(production)


def test_extras_of_the_client_are_locked_for_their_tests() -> None:
    extras = project("sdk")["project"]["optional-dependencies"]
    locked = pinned(FLOWER) | pinned(FRAMEWORKS) | pinned(TORCH) | pinned(DEV)
    unlocked = {"mindspore"}  # 800 MB: its adapter is tested where it is installed
    wanted = [item for extra in extras.values() for item in extra if Requirement(item).name not in unlocked]
    assert len(wanted) > 15
    _are_met(wanted, locked)


def test_frameworks_are_installed_for_their_tests_and_not_for_a_newcomer() -> None:
    makefile = (ROOT / "Makefile").read_text()
    needs = dict(re.findall(r"(?m)^([a-z-]+): (\$.*) ##", makefile))
    assert needs["test-frameworks"] == "$(FRAMEWORKS) $(FLOWER)"
    assert {needs[target] for target in ("setup", "demo", "run", "check", "test")} == {"$(STAMP)"}


def _are_met(wanted: list[str], found: dict[str, set[Version]]) -> None:
    for requirement in map(Requirement, wanted):
        versions = found[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), requirement
