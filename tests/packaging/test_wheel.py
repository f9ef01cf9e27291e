"""The wheel, built and installed as the image does it: without a network, and beside the locked packages only."""

import json
import re
import socket
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.packaging.dockerfile import ROOT, only, stages
from tests.packaging.environments import Installed, free_port, wait_until_ready


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the service was started."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def served(installed: Installed, empty: Path) -> Iterator[int]:
    with installed.served(empty) as port:
        yield port


def test_it_serves_from_an_empty_folder(served: int, installed: Installed, empty: Path) -> None:
    assert (empty / "epsilon-ledger.db").exists()
    made = installed.run("epsilon-ledger", "org", "create", "hospital", cwd=empty)
    assert made.returncode == 0, made.stderr
    key = json.loads(
        installed.run("epsilon-ledger", "keys", "create", "--org", "hospital", "--role", "viewer", cwd=empty).stdout
    )["key"]
    listed = httpx2.get(f"http://127.0.0.1:{served}/v1/runs", headers={"Authorization": f"Bearer {key}"})
    assert (listed.status_code, listed.json()) == (200, {"items": [], "next": None})


def test_the_command_of_the_image_leads_to_the_first_sign_in(installed: Installed, tmp_path: Path) -> None:
    """As `docker run` does it: an empty volume, no settings but the image's, and not even a home."""
    *_, final = stages()
    exposed, port = only(final, "EXPOSE").arguments, free_port()
    given = dict(word.split("=", 1) for word in only(final, "ENV").arguments.split())
    volume = only(final, "VOLUME").arguments
    given |= {name: value.replace(f"{volume}/", f"{tmp_path}/") for name, value in given.items()}
    given["PATH"] = given["PATH"].replace("/opt/epsilon-ledger/bin", str(installed.bin))
    command = [word.replace(exposed, str(port)) for word in only(final, "CMD").command]
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen(
            [installed.bin / command[0], *command[1:]], cwd=tmp_path, env=given, stdout=output, stderr=output
        )
        try:
            wait_until_ready(port, process)
            output.seek(0)
            (link,) = re.findall(rf"http://localhost:{port}/sign-in/link#(\S+)", output.read())
            with httpx2.Client(base_url=f"http://localhost:{port}", trust_env=False) as browser:
                assert browser.get("/sign-in/link").status_code == 200
                page = {"Origin": f"http://localhost:{port}"}
                signed_in = browser.post("/sign-in/link", data={"token": link}, headers=page)
                assert signed_in.status_code == 303, signed_in.text
                assert browser.get("/").status_code == 200
                again = browser.post("/sign-in/link", data={"token": link}, headers=page)
                assert again.status_code == 401
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert (tmp_path / "epsilon-ledger.db").exists()


def test_its_pages_have_their_styles_and_scripts(served: int) -> None:
    with httpx2.Client(base_url=f"http://127.0.0.1:{served}", follow_redirects=True, trust_env=False) as browser:
        page = browser.get("/")
        assert page.headers["content-type"].startswith("text/html"), page.text
        parts = set(re.findall(r'(?:href|src)="(/[^"#?]*\.\w+)', page.text))
        assert {part.rpartition(".")[2] for part in parts} >= {"css", "js"}
        assert {part: browser.get(part).status_code for part in parts} == dict.fromkeys(parts, 200)


def test_the_healthcheck_follows_the_service(served: int, installed: Installed, tmp_path: Path) -> None:
    *_, final = stages()
    check = [word.replace("8000", str(served)) for word in only(final, "HEALTHCHECK").command]
    assert installed.run(*check, cwd=tmp_path).returncode == 0
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = [word.replace(str(served), str(nobody.getsockname()[1])) for word in check]
        assert installed.run(*gone, cwd=tmp_path).returncode == 1


def test_it_is_the_wheel_that_runs_and_not_the_checkout(installed: Installed, tmp_path: Path) -> None:
    found = installed.run("python", "-c", "import app; print(app.__file__)", cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(installed.bin.parent)


def test_the_demo_says_what_it_still_needs(installed: Installed, tmp_path: Path) -> None:
    asked = installed.run("epsilon-ledger", "demo", cwd=tmp_path)
    assert asked.returncode != 0
    answer = asked.stdout + asked.stderr
    assert "pip install 'epsilon-ledger[demo]'" in answer
    assert "Traceback" not in answer


def test_the_wheel_holds_every_module_and_every_migration(installed: Installed) -> None:
    tracked = {
        path.relative_to(ROOT).as_posix()
        for folder in ("app", "migrations")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = set(wheel.namelist())
    expected = {re.sub(r"^migrations/", "app/migrations/", path) for path in tracked}
    assert expected <= names
    assert {name for name in names - expected if ".dist-info/" not in name} == set()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "app/demo/training.py" in names
    assert "app/migrations/versions/0001_initial.py" in names
