"""Wheels, sdists and SBOM of a release: the same bytes each time, valid metadata, and nothing that strayed in."""

import os
import re
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
from tests.docs.markdown import fences
from tests.packaging.conftest import FETCHED, tracked
from tests.packaging.dockerfile import ROOT
from tests.packaging.environments import Installed

NAMES = ("epsilon_ledger", "epsilon_ledger_client")
FOLDERS = {"epsilon_ledger": "", "epsilon_ledger_client": "sdk/"}
NEVER = re.compile(r"__pycache__|\.pyc$|\.db|\.egg-info|node_modules|\.cache|/tests?/")
NOT_RUN = {
    "git tag": "it would publish",
    "git push": "it would publish",
    "gh attestation": "needs a release on GitHub",
    "docker buildx": "needs a container engine and a registry",
}
"""By the first two words: commands of the page that no test runs, with the reason."""


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


@pytest.fixture(scope="module")
def built(release: Path) -> Built:
    return Built(release / "dist")


def _build(source: Path, target: Path, *options: str, **environment: str) -> Built:
    command = [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(target)]
    # It has Chart.js, and needs no npm.
    subprocess.run(
        command, cwd=source, env=os.environ | {"PATH": "/nowhere"} | environment, capture_output=True, check=True
    )
    return Built(target)


def test_release_has_wheels_and_sdists_of_both_and_a_bill_of_materials(release: Path) -> None:
    assert sorted(path.name.replace(f"-{VERSION}", "") for path in (release / "dist").iterdir()) == [
        "epsilon-ledger.cdx.json",
        *(f"{name}{kind}" for name in NAMES[:1] for kind in ("-py3-none-any.whl", ".tar.gz")),
        *(f"{name}{kind}" for name in NAMES[1:] for kind in ("-py3-none-any.whl", ".tar.gz")),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_build_of_the_sdist_at_another_time_and_place_makes_the_same_bytes(
    built: Built, tmp_path: Path, name: str
) -> None:
    previous = os.umask(0o077)
    try:
        with tarfile.open(built.sdist(name)) as sdist:
            sdist.extractall(tmp_path / "deeper", filter="data")
        (unpacked,) = (tmp_path / "deeper").iterdir()
        again = _build(unpacked, tmp_path / "dist", TZ="Asia/Tokyo")
    finally:
        os.umask(previous)
    assert again.wheel(name).read_bytes() == built.wheel(name).read_bytes()
    assert again.sdist(name).read_bytes() == built.sdist(name).read_bytes()


def test_image_has_the_wheel_of_the_release(built: Built, installed: Installed) -> None:
    assert installed.wheel.read_bytes() == built.wheel("epsilon_ledger").read_bytes()


def test_files_have_the_date_of_the_release(release: Path, tmp_path: Path) -> None:
    dated = _build(release / "sdk", tmp_path, "--target", "wheel", SOURCE_DATE_EPOCH="1790000000")
    with zipfile.ZipFile(dated.wheel("epsilon_ledger_client")) as wheel:
        assert {entry.date_time[:3] for entry in wheel.infolist()} == {(2026, 9, 21)}


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


@pytest.mark.parametrize(("tag", "accepted"), [(f"v{VERSION}", True), (f"v{VERSION}1", False)])
def test_workflow_refuses_a_tag_of_another_version(release: Path, tag: str, *, accepted: bool) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = (step["run"] for step in workflow["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    done = subprocess.run(["bash", "-e", "-c", script], cwd=release, env=os.environ | {"TAG": tag}, check=False)
    assert (done.returncode == 0) is accepted


def test_command_of_the_page_is_run_or_listed_with_its_reason() -> None:
    page = fences((ROOT / "docs" / "contributing" / "releases.md").read_text())
    lines = [line.strip() for fence in page if fence.language == "bash" for line in fence.text.splitlines()]
    assert {" ".join(line.split()[:2]) for line in lines if line} == {*NOT_RUN, "make dist", "make sbom"}
