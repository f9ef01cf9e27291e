"""The wheel, installed without a network beside locked packages only: as in the image, with its extras, and without."""

import json
import re
import subprocess
from itertools import chain
from pathlib import Path

import httpx2
import pytest

from tests.packaging.dockerfile import only, stages
from tests.packaging.environments import Installed, free_port, locked, needed, wait_until_ready

FINAL = stages()[-1]

LEDGER = """
import contextlib, io, json, sys
from datetime import UTC, datetime
from starlette.testclient import TestClient
from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.auth.authentication import create_organisation
from app.service.governance.api_keys import create_key
from app.settings import Settings

database = Database("sqlite:///ledger.db")
upgrade(database)
app = create_app(Settings(database_url="sqlite:///ledger.db"))
create_organisation(database, "hospital", datetime.now(UTC))
key = create_key(database, "hospital", Role("admin"), datetime.now(UTC)).key
http = TestClient(app, base_url="http://testserver")
http.__enter__()
headers = {"Authorization": f"Bearer {key}"}
terms = {"name": "p", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
limit = {"limit": {"epsilon": 3.0, "delta": 1e-5}}
account = http.post("/v1/populations", json=terms | limit, headers=headers).json()["id"]
run = {"budget": "p", "name": "r", "event": {"type": "gaussian", "noise_multiplier": 5.0}}
run = http.post("/v1/runs", json=run, headers=headers).json()["id"]
assert http.post(f"/v1/runs/{run}/steps", json={}, headers=headers).status_code == 200
same = {"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"}
assert http.post("/sign-in", data={"key": key}, headers=same, follow_redirects=False).status_code == 303
drawn = {kind: http.get(f"/v1/accounts/{account}/history.{kind}", headers=headers) for kind in ("svg", "png")}
said = {
    "statuses": [each.status_code for each in drawn.values()],
    "svg": drawn["svg"].text,
    "points": len(http.get(f"/v1/accounts/{account}/history", headers=headers).json()["points"]),
    "page": http.get(f"/accounts/{account}").text,
    "stranger": TestClient(app).get(f"/v1/accounts/{account}/history.svg").status_code,
}
"""

BARE = """
import importlib, os, pkgutil
import app as package
missing = []
for name in ("matplotlib", "psycopg", "opentelemetry.sdk", "sklearn", "epsilon_ledger"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        missing.append(name)
names = [each.name for each in pkgutil.walk_packages(package.__path__, "app.")]
names = [name for name in names if ".demo" not in name and not name.startswith("app.migrations")]
for name in names:
    importlib.import_module(name)

from app.cli import main
def refusal(*arguments, **variables):
    os.environ.update(variables)
    sys.argv = ["epsilon-ledger", *arguments]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
        except SystemExit as end:
            return [end.code, output.getvalue()]

url = "postgresql://ledger:secret@127.0.0.1:1/ledger"
said |= {
    "missing": missing,
    "modules": len(names),
    "commands": [refusal(each, EPSILON_LEDGER_DATABASE_URL=url) for each in ("serve", "verify")],
    "demo": refusal("demo"),
    "file": package.__file__,
}
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
create_app(Settings(database_url="sqlite:///ledger.db"))
"""

PICTURES = """
import io, json
from matplotlib.backends import backend_agg, backend_svg
from matplotlib.figure import Figure
from app.charts.render import can_draw
said = {}
for kind in ("svg", "png"):
    drawn = io.BytesIO()
    Figure().savefig(drawn, format=kind)
    said[kind] = can_draw() and len(drawn.getvalue()) > 500
"""


def _said(installed: Installed, folder: Path, code: str) -> tuple[dict[str, object], str]:
    """What a program says that runs in an environment, and what it warns of."""
    (folder / "program.py").write_text(f"{code}\nprint(json.dumps(said))\n")
    done = installed.run("python", "program.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_image_serves_from_an_empty_volume_to_the_first_sign_in_and_its_health_check_follows(
    installed: Installed, tmp_path: Path
) -> None:
    """As `docker run` does it: no settings but the image's, and not even a home."""
    exposed, port = only(FINAL, "EXPOSE").arguments, str(free_port())
    given = dict(word.split("=", 1) for word in only(FINAL, "ENV").arguments.split())
    volume = only(FINAL, "VOLUME").arguments
    given |= {name: value.replace(f"{volume}/", f"{tmp_path}/") for name, value in given.items()}
    given["PATH"] = given["PATH"].replace("/opt/epsilon-ledger/bin", str(installed.bin))
    command = [word.replace(exposed, port) for word in only(FINAL, "CMD").command]
    check = [word.replace(exposed, port) for word in only(FINAL, "HEALTHCHECK").command]
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen(
            [installed.bin / command[0], *command[1:]], cwd=tmp_path, env=given, stdout=output, stderr=output
        )
        try:
            wait_until_ready(int(port), process)
            output.seek(0)
            (link,) = re.findall(rf"http://localhost:{port}/sign-in/link#(\S+)", output.read())
            with httpx2.Client(base_url=f"http://localhost:{port}", trust_env=False) as browser:
                assert browser.get("/sign-in/link").status_code == 200
                page = {"Origin": f"http://localhost:{port}"}
                signed_in = browser.post("/sign-in/link", data={"token": link}, headers=page)
                assert signed_in.status_code == 303, signed_in.text
                shown = browser.get("/")
                assert shown.status_code == 200
                parts = set(re.findall(r'(?:href|src)="(/[^"#?]*\.\w+)', shown.text))
                assert {part.rpartition(".")[2] for part in parts} >= {"css", "js"}
                assert {part: browser.get(part).status_code for part in parts} == dict.fromkeys(parts, 200)
                assert browser.post("/sign-in/link", data={"token": link}, headers=page).status_code == 401
            assert installed.run(*check, cwd=tmp_path).returncode == 0
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0
    assert (tmp_path / "epsilon-ledger.db").exists()
    assert installed.run(*check, cwd=tmp_path).returncode == 1


def test_without_extras_all_else_works_and_each_use_says_what_to_install(installed: Installed, tmp_path: Path) -> None:
    said, warned = _said(installed.beside(tmp_path, needed()), tmp_path, LEDGER + BARE)
    assert said["missing"] == ["matplotlib", "psycopg", "opentelemetry.sdk", "sklearn", "epsilon_ledger"]
    assert isinstance(said["modules"], int)
    assert said["modules"] > 200
    assert Path(str(said["file"])).is_relative_to(tmp_path)  # the wheel, and not the checkout
    assert said["statuses"] == [501, 501]
    problem = json.loads(str(said["svg"]))
    assert problem["code"] == "charts_not_installed"
    assert "pip install 'epsilon-ledger[charts]'" in problem["detail"]
    assert said["points"]
    assert "<canvas" in str(said["page"])
    assert "history.svg" not in str(said["page"])
    assert said["stranger"] == 401
    assert isinstance(said["commands"], list)
    for (status, text), extra in zip(
        [*said["commands"], said["demo"]], ["postgresql", "postgresql", "demo"], strict=True
    ):
        assert status not in {0, None}
        assert f"pip install 'epsilon-ledger[{extra}]'" in text
        assert "Traceback" not in text
        assert "secret" not in text
    assert "pip install 'epsilon-ledger[telemetry]'" in warned


def test_pictures_are_drawn_with_the_locks_of_production_and_charts_without_a_home(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charts = installed.beside(tmp_path, chain(locked("requirements.lock"), locked("requirements-charts.lock")))
    set_by_image = dict(word.split("=", 1) for word in only(FINAL, "ENV").arguments.split())
    folder = Path(set_by_image["MPLCONFIGDIR"])
    assert folder.parent == Path("/tmp")  # noqa: S108 - in the image, where all else may be read-only
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / folder.name))
    said, _ = _said(charts, tmp_path, PICTURES)
    assert said == {"svg": True, "png": True}
    assert (tmp_path / folder.name).is_dir()
