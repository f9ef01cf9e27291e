"""Wheels, sdists and SBOM of a release: the same bytes each time, valid metadata, and nothing that strayed in."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

from app.version import VERSION
from tests.packaging.dockerfile import ROOT

NAMES = ("epsilon_ledger", "epsilon_ledger_client")
FOLDERS = {"epsilon_ledger": "", "epsilon_ledger_client": "sdk/"}
FETCHED = {"app/dashboard/chart_js/LICENSE.md", "app/dashboard/chart_js/chart.umd.min.js"}
STRAYS = (
    *("epsilon-ledger.db", ".cache/x", "tests/x.py", "sdk/epsilon-ledger.db", "sdk/dist/x.whl"),
    *("app/__pycache__/x.cpython-311.pyc", "sdk/src/epsilon_ledger/__pycache__/x.cpython-311.pyc"),
)
NEVER = re.compile(r"__pycache__|\.pyc$|\.db|\.egg-info|node_modules|\.cache|/tests?/")


@dataclass(frozen=True)
class Built:
    """The distributions that one build made, by project."""

    folder: Path

    def wheel(self, name: str) -> Path:
        (found,) = self.folder.glob(f"{name}-*.whl")
        return found

    def sdist(self, name: str) -> Path:
        (found,) = self.folder.glob(f"{name}-*.tar.gz")
        return found

    def names(self, name: str) -> tuple[set[str], set[str]]:
        """The files of a project's wheel and, without its first folder, of its sdist."""
        with zipfile.ZipFile(self.wheel(name)) as wheel, tarfile.open(self.sdist(name)) as sdist:
            assert all(member.isfile() for member in sdist.getmembers())
            return set(wheel.namelist()), {path.partition("/")[2] for path in sdist.getnames()}

    def metadata(self, name: str) -> bytes:
        with zipfile.ZipFile(self.wheel(name)) as wheel:
            (path,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return wheel.read(path)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).exists()]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, with strays, where `make dist sbom` was called; `dist` has the results."""
    copy = tmp_path_factory.mktemp("release")
    for path in [*(path for path in tracked() if not path.startswith(("docs/", "tests/"))), *FETCHED]:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    for stray in STRAYS:
        (copy / stray).parent.mkdir(parents=True, exist_ok=True)
        (copy / stray).write_text("a stray")
    (copy / ".venv").symlink_to(ROOT / ".venv")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    # `--assume-old` keeps make from setting up the environment, which stands.
    command = ["make", "--assume-old", ".venv/.installed", "dist", "sbom"]
    subprocess.run(command, cwd=copy, env=kept, check=True, timeout=120)
    return copy


@pytest.fixture(scope="module")
def built(release: Path) -> Built:
    return Built(release / "dist")


def test_release_has_wheels_and_sdists_of_both_and_a_bill_of_materials(release: Path) -> None:
    kinds = ("-py3-none-any.whl", ".tar.gz")
    found = sorted(path.name.replace(f"-{VERSION}", "") for path in (release / "dist").iterdir())
    assert found == ["epsilon-ledger.cdx.json", *(f"{name}{kind}" for name in NAMES for kind in kinds)]


def test_build_of_the_sdist_at_another_time_and_place_makes_the_same_bytes(built: Built, tmp_path: Path) -> None:
    previous, name = os.umask(0o077), NAMES[0]
    try:
        with tarfile.open(built.sdist(name)) as sdist:
            sdist.extractall(tmp_path / "deeper", filter="data")
        (unpacked,) = (tmp_path / "deeper").iterdir()
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path / "dist")]
        # It has Chart.js, and needs no npm.
        there = os.environ | {"PATH": "/nowhere", "TZ": "Asia/Tokyo"}
        subprocess.run(command, cwd=unpacked, env=there, capture_output=True, check=True)
    finally:
        os.umask(previous)
    again = Built(tmp_path / "dist")
    assert again.wheel(name).read_bytes() == built.wheel(name).read_bytes()
    assert again.sdist(name).read_bytes() == built.sdist(name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_distributions_have_the_files_of_the_project_its_licence_and_no_stray(built: Built, name: str) -> None:
    wheel, sdist = built.names(name)
    beside = {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO"}
    if name == "epsilon_ledger":
        own = {path for path in tracked() if path.startswith(("app/", "migrations/"))} | FETCHED
        beside |= {"CHANGELOG.md", "hatch_build.py", "web/package.json", "web/package-lock.json"} | own
        inside = {re.sub(r"^migrations/", "app/migrations/", path) for path in own}
    else:
        inside = {path.removeprefix("sdk/src/") for path in tracked() if path.startswith("sdk/src/")}
        assert "epsilon_ledger/py.typed" in inside
        beside |= {f"src/{path}" for path in inside}
    assert sdist - {".gitignore"} == beside
    assert {path for path in wheel if ".dist-info/" not in path} == inside
    assert not list(filter(NEVER.search, wheel | sdist))
    assert f"{name}-{VERSION}.dist-info/licenses/LICENSE" in wheel
    assert (ROOT / FOLDERS[name] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_valid_and_complete(built: Built, name: str) -> None:
    found = Metadata.from_email(built.metadata(name), validate=True)
    assert str(found.version) == VERSION
    assert found.author == "The Epsilon Ledger maintainers"
    assert found.summary
    assert found.keywords
    assert set(found.project_urls or {}) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in (found.project_urls or {}).values())
    assert str(found.requires_python) == ">=3.11"
    assert "Programming Language :: Python :: 3.11" in (found.classifiers or ())
    assert not [each for each in found.classifiers or () if each.startswith("License ::")]  # the expression says it
    assert found.license_files == ["LICENSE"]
    assert found.license_expression == ("Apache-2.0 AND MIT" if name == "epsilon_ledger" else "Apache-2.0")
    always = [str(each) for each in found.requires_dist or () if each.marker is None]
    assert name == "epsilon_ledger" or always == ["httpx2>=2.10"]


@pytest.mark.parametrize("name", NAMES)
def test_long_description_is_the_readme_with_absolute_links(built: Built, name: str) -> None:
    message = message_from_bytes(built.metadata(name))
    assert message["Description-Content-Type"] == "text/markdown"
    described = message.get_payload(decode=True)
    assert isinstance(described, bytes)
    text, readme = described.decode(), (ROOT / FOLDERS[name] / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 5
    for link in links:
        place = re.fullmatch(rf"https://example.org/epsilon-ledger/source/(blob|raw)/v{VERSION}/([^#]+)(#.+)?", link)
        assert place, link
        assert (ROOT / place[2]).exists(), link
        assert (place[1] == "raw") == place[2].endswith(".png")
    assert re.sub(r"\]\([^)]+\)", "]()", text).strip() == re.sub(r"\]\([^)]+\)", "]()", readme).strip()


def test_workflow_refuses_a_tag_of_another_version(release: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    command = ["bash", "-e", "-c", script]
    tags = [os.environ | {"TAG": f"v{VERSION}{more}"} for more in ("", "1")]
    statuses = [subprocess.run(command, cwd=release, env=given, check=False).returncode for given in tags]
    assert [status == 0 for status in statuses] == [True, False]
