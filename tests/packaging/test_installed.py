"""The wheel that the image builds, beside locked packages only: as in the image, with its extras, and without."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from itertools import chain
from pathlib import Path

import httpx2
import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.sbom import locked_packages
from tests.packaging.dockerfile import ROOT, only, run_with, stages
from tests.polling import await_true
from tests.postgres import free_port
from tests.programs import run

FINAL = stages()[-1]
IMAGE = dict(word.split("=", 1) for word in only(FINAL, "ENV").arguments.split())
PYTHON = [sys.executable, "-S"]
"""Without the packages of this environment: those that it may see are in PYTHONPATH."""

BARE = """
import contextlib, importlib, io, json, os, pkgutil, sys
import app as package
missing = []
for name in ("psycopg", "opentelemetry.sdk", "sklearn", "epsilon_ledger"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        missing.append(name)
names = [each.name for each in pkgutil.walk_packages(package.__path__, "app.")]
names = [name for name in names if ".demo" not in name and not name.startswith("app.migrations")]
for name in names:
    importlib.import_module(name)

from app.cli import main
from app.main import create_app
from app.configuration.settings import Settings

def refusal(*arguments):
    sys.argv = ["epsilon-ledger", *arguments]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
        except SystemExit as end:
            return [end.code, output.getvalue()]

os.environ["EPSILON_LEDGER_DATABASE_URL"] = "postgresql://ledger:secret@127.0.0.1:1/ledger"
said = [missing, len(names), package.__file__, [refusal(each) for each in ("serve", "verify", "demo")]]
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
create_app(Settings(database_url="sqlite:///ledger.db"))
print(json.dumps(said))
"""


def locked(*locks: str) -> Iterator[Distribution]:
    """What locks install on this platform."""
    for package in chain.from_iterable(locked_packages((ROOT / lock).read_text()) for lock in locks):
        if not package.marker or Marker(package.marker).evaluate():
            yield distribution(package.name)


def closure(*requirements: str) -> Iterator[Distribution]:
    """The installed packages that requirements lead to."""
    wanted, found = [*map(Requirement, requirements)], set[tuple[str, str]]()
    while wanted:
        requirement = wanted.pop()
        for extra in {"", *requirement.extras}:
            key = (canonicalize_name(requirement.name), extra)
            if key in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
                continue
            found.add(key)
            package = distribution(requirement.name)
            parts = [Requirement(text) for text in package.requires or ()]
            wanted += [each for each in parts if each.marker is None or each.marker.evaluate({"extra": extra})]
            if not extra:
                yield package


def environment(folder: Path, site: Path, packages: Iterable[Distribution], **more: str) -> dict[str, str]:
    """Variables with which Python sees a wheel's files and these packages, and no others of this environment."""
    shown = folder / "shown"
    shown.mkdir()
    for package in packages:
        for file in package.files or ():
            if file.parts[0] in {"..", "__pycache__"}:
                continue
            own = Path(str(package.locate_file(file.parts[0])))
            shared = own.is_dir() and own.suffix != ".dist-info" and not (own / "__init__.py").exists()
            place = file if shared else file.parts[0]  # a namespace belongs to several packages
            if not (shown / place).exists():
                (shown / place).parent.mkdir(parents=True, exist_ok=True)
                (shown / place).symlink_to(str(package.locate_file(place)))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}{os.pathsep}{shown}"} | more


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel that the image builds from what it copies."""
    folder = tmp_path_factory.mktemp("image")
    _, build, _ = stages()
    for path in (Path(item) for each in build if each.name == "COPY" for item in each.sources):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(ROOT / path, folder / path)
    step = run_with(build, "hatchling build").split("&&")[0].replace("/opt/build/bin/python", sys.executable)
    run(["sh", "-c", step], cwd=folder)
    (wheel,) = (folder / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
        licence = next(name for name in packed.namelist() if name.endswith("licenses/LICENSE"))
        assert packed.read(licence) == (ROOT / "LICENSE").read_bytes()
    return folder / "site"


@pytest.mark.soak
def test_image_serves_from_an_empty_volume_to_the_first_sign_in_and_its_health_check_follows(
    site: Path, tmp_path: Path
) -> None:
    """As `docker run` does it: no settings but the image's, and not even a home."""
    exposed, port = only(FINAL, "EXPOSE").arguments, str(free_port())
    volume = only(FINAL, "VOLUME").arguments
    given = environment(tmp_path, site, locked("requirements.lock"))
    given |= {key: word.replace(f"{volume}/", f"{tmp_path}/") for key, word in IMAGE.items() if key != "PATH"}
    program, *command = (word.replace(exposed, port) for word in only(FINAL, "CMD").command)
    assert program == "epsilon-ledger"
    check = [sys.executable, *(word.replace(exposed, port) for word in only(FINAL, "HEALTHCHECK").command[1:])]
    output = tmp_path / "output"
    with output.open("w") as log:
        process = subprocess.Popen([*PYTHON, "-m", "app", *command], cwd=tmp_path, env=given, stdout=log, stderr=log)
    try:
        await_true(
            lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0, output.read_text, 1.0
        )
        (link,) = re.findall(rf"http://localhost:{port}/sign-in/link#(\S+)", output.read_text())
        with httpx2.Client(base_url=f"http://localhost:{port}", trust_env=False) as browser:
            page = {"Origin": f"http://localhost:{port}"}
            signed_in = browser.post("/sign-in/link", data={"token": link}, headers=page)
            assert signed_in.status_code == 303, signed_in.text
            parts = set(re.findall(r'(?:href|src)="(/[^"#?]*\.\w+)', browser.get("/").text))
            assert {part.rpartition(".")[2] for part in parts} >= {"css", "js"}
            assert {part: browser.get(part).status_code for part in parts} == dict.fromkeys(parts, 200)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert (tmp_path / "epsilon-ledger.db").exists()
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1


def test_without_extras_all_else_works_and_each_use_says_what_to_install(site: Path, tmp_path: Path) -> None:
    needed = closure(*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    done = run([*PYTHON, "-c", BARE], cwd=tmp_path, env=environment(tmp_path, site, needed))
    missing, modules, file, commands = json.loads(done.stdout.splitlines()[-1])
    assert missing == ["psycopg", "opentelemetry.sdk", "sklearn", "epsilon_ledger"]
    assert modules > 200
    assert Path(file).is_relative_to(site)  # the wheel, and not the checkout
    for (status, text), extra in zip(commands, ["postgresql", "postgresql", "demo"], strict=True):
        assert status not in {0, None}
        assert f"pip install 'epsilon-ledger[{extra}]'" in text
        assert "Traceback" not in text
        assert "secret" not in text
    assert "pip install 'epsilon-ledger[telemetry]'" in done.stderr
