"""Wheels and sdists of service and client: the same bytes each time, valid metadata, and nothing that strayed in."""

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
from packaging.metadata import Metadata

from tests.packaging.dockerfile import ROOT

NAMES = ("epsilon_ledger", "epsilon_ledger_client")
FOLDERS = {"epsilon_ledger": "", "epsilon_ledger_client": "sdk/"}
FETCHED = {"app/dashboard/chart_js/LICENSE.md", "app/dashboard/chart_js/chart.umd.min.js"}
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


def built(source: Path, folder: Path) -> Built:
    """Build both projects from a copy of what git tracks, with strays beside it, and with Chart.js."""
    for path in [*tracked(), *FETCHED]:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)
    for stray in ("epsilon-ledger.db", ".cache/x", "tests/x.py", "sdk/epsilon-ledger.db", "sdk/dist/x.whl"):
        (source / stray).parent.mkdir(parents=True, exist_ok=True)
        (source / stray).write_text("a stray")
    for package in ("app", "sdk/src/epsilon_ledger"):
        (source / package / "__pycache__").mkdir()
        (source / package / "__pycache__" / "x.cpython-311.pyc").write_text("a stray")
    for place in (source, source / "sdk"):
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
        subprocess.run(command, cwd=place, env=os.environ | {"PATH": "/nowhere"}, capture_output=True, check=True)
    return Built(folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("first")
    return built(folder / "source", folder / "dist")


def test_two_builds_at_other_times_and_places_make_the_same_bytes(
    first: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    previous = os.umask(0o077)
    try:
        again = built(tmp_path / "a" / "deeper" / "source", tmp_path / "dist")
    finally:
        os.umask(previous)
    for name in NAMES:
        assert again.wheel(name).read_bytes() == first.wheel(name).read_bytes()
        assert again.sdist(name).read_bytes() == first.sdist(name).read_bytes()


def test_the_date_of_the_files_is_the_release_s(first: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    dated = built(tmp_path / "source", tmp_path / "dist")
    with zipfile.ZipFile(dated.wheel("epsilon_ledger_client")) as wheel:
        assert {entry.date_time[:3] for entry in wheel.infolist()} == {(2026, 9, 21)}
    assert dated.names("epsilon_ledger") == first.names("epsilon_ledger")


def test_the_service_s_distributions_have_its_files_and_no_stray(first: Built) -> None:
    wheel, sdist = first.names("epsilon_ledger")
    own = {path for path in tracked() if path.startswith(("app/", "migrations/"))} | FETCHED
    beside = {"CHANGELOG.md", "README.md", "LICENSE", "hatch_build.py", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert sdist == own | beside | {"web/package.json", "web/package-lock.json"}
    inside = {re.sub(r"^migrations/", "app/migrations/", path) for path in own}
    assert {path for path in wheel if ".dist-info/" not in path} == inside
    assert not list(filter(NEVER.search, wheel | sdist))


def test_the_client_s_distributions_have_its_files_and_no_stray(first: Built) -> None:
    wheel, sdist = first.names("epsilon_ledger_client")
    own = {path.removeprefix("sdk/src/") for path in tracked() if path.startswith("sdk/src/")}
    assert {path for path in wheel if ".dist-info/" not in path} == own
    assert "epsilon_ledger/py.typed" in own
    beside = {"README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert sdist - {".gitignore"} == ({f"src/{path}" for path in own} | beside) - {".gitignore"}
    assert not list(filter(NEVER.search, wheel | sdist))


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_is_valid_and_complete(first: Built, name: str) -> None:
    found = Metadata.from_email(first.metadata(name), validate=True)
    assert str(found.version) == "0.1.0"
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


@pytest.mark.parametrize("name", NAMES)
def test_the_licence_is_in_both(first: Built, name: str) -> None:
    wheel, sdist = first.names(name)
    assert f"{name}-0.1.0.dist-info/licenses/LICENSE" in wheel
    assert "LICENSE" in sdist
    assert (ROOT / FOLDERS[name] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_long_description_is_the_readme_with_absolute_links(first: Built, name: str) -> None:
    message = message_from_bytes(first.metadata(name))
    assert message["Description-Content-Type"] == "text/markdown"
    described = message.get_payload(decode=True)
    assert isinstance(described, bytes)
    text = described.decode()
    readme = (ROOT / FOLDERS[name] / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 5
    source = "https://example.org/epsilon-ledger/source"
    for link in links:
        place = re.fullmatch(rf"{source}/(blob|raw)/v0\.1\.0/([^#]+)(#.+)?", link)
        assert place, link
        assert (ROOT / place[2]).exists(), link
        assert (place[1] == "raw") == place[2].endswith(".png")
    assert re.sub(r"\]\([^)]+\)", "]()", text).strip() == re.sub(r"\]\([^)]+\)", "]()", readme).strip()


def test_the_client_s_dependency_is_one(first: Built) -> None:
    found = Metadata.from_email(first.metadata("epsilon_ledger_client"))
    assert [str(each) for each in found.requires_dist or () if each.marker is None] == ["httpx2>=2.10"]


def test_a_wheel_of_the_sdist_is_the_wheel(first: Built, tmp_path: Path) -> None:
    for name in NAMES:
        with tarfile.open(first.sdist(name)) as sdist:
            sdist.extractall(tmp_path / name, filter="data")
        (unpacked,) = (tmp_path / name).iterdir()
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
        # It has Chart.js, and needs no npm.
        subprocess.run(command, cwd=unpacked, env=os.environ | {"PATH": "/nowhere"}, capture_output=True, check=True)
        assert (tmp_path / first.wheel(name).name).read_bytes() == first.wheel(name).read_bytes()
