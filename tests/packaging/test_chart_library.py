"""Chart.js comes from its own npm package, and only the file whose hash was reviewed is built in."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from app.dashboard.assets import asset
from tests.packaging.dockerfile import ROOT

SCRIPT = Path("app/dashboard/chart_js/chart.umd.min.js")


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018 - of one thing
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that was not set up."""
    (tmp_path / "app" / "dashboard").mkdir(parents=True)
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    return tmp_path


@pytest.fixture
def npm(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of npm, which installs what a test puts into `web/offered`."""
    script = checkout / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\n[ "$1" = ci ] || exit 3\n'
        "[ -d offered ] || { echo 'EINTEGRITY: not what was locked' >&2; exit 1; }\n"
        "mkdir -p node_modules && cp -r offered node_modules/chart.js\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


def offer(checkout: Path, content: bytes) -> None:
    offered = checkout / "web" / "offered"
    (offered / "dist").mkdir(parents=True)
    (offered / "dist" / SCRIPT.name).write_bytes(content)
    (offered / "LICENSE.md").write_text("MIT")


def test_script_is_fetched_once_and_checked(hook: ModuleType, checkout: Path, npm: Path) -> None:
    offer(checkout, (ROOT / SCRIPT).read_bytes())
    hook.provide(checkout)
    assert (checkout / SCRIPT).read_bytes() == (ROOT / SCRIPT).read_bytes()
    assert (checkout / SCRIPT).with_name("LICENSE.md").read_text() == "MIT"
    npm.unlink()
    shutil.rmtree(checkout / "web" / "offered")
    hook.provide(checkout)  # it is there already


def test_file_with_another_hash_is_refused_and_not_kept(hook: ModuleType, checkout: Path, npm: Path) -> None:
    assert npm.exists()
    offer(checkout, b"alert('mined')")
    with pytest.raises(SystemExit, match=r"has the hash .* pins .*; it was removed"):
        hook.provide(checkout)
    assert not (checkout / SCRIPT).exists()


def test_error_of_npm_is_shown(hook: ModuleType, checkout: Path, npm: Path) -> None:
    assert npm.exists()
    with pytest.raises(SystemExit, match="EINTEGRITY: not what was locked"):
        hook.provide(checkout)


def test_missing_npm_is_named_with_its_package(
    hook: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(SystemExit, match="apt-get install npm"):
        hook.provide(checkout)


def test_lock_has_hashes_and_no_address() -> None:
    text = (ROOT / "web" / "package-lock.json").read_text()
    assert "://" not in text
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}
    assert set(packages) == {"node_modules/chart.js", "node_modules/@kurkle/color"}
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    wanted = json.loads((ROOT / "web" / "package.json").read_text())["dependencies"]
    assert wanted == {"chart.js": packages["node_modules/chart.js"]["version"]}


def test_pages_serve_the_version_that_was_locked() -> None:
    version = json.loads((ROOT / "web" / "package.json").read_text())["dependencies"]["chart.js"]
    assert asset("chart.js").content == (ROOT / SCRIPT).read_bytes()
    assert f"Chart.js v{version}".encode() in asset("chart.js").content[:100]
