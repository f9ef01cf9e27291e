"""The extras: without one of them, what needs it says how to install it, and all else works."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import httpx2
import pytest

from tests.packaging.dockerfile import only, stages
from tests.packaging.environments import Installed, install, locked, needed, new_environment


@pytest.fixture(scope="module")
def bare(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with what it needs, and no extra."""
    target = new_environment(tmp_path_factory.mktemp("bare"), needed())
    install(installed.wheel, target)
    return Installed(installed.wheel, target / "bin")


@pytest.fixture(scope="module")
def pictured(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The image that was built with CHARTS=yes."""
    packages = chain(locked("requirements.lock"), locked("requirements-charts.lock"))
    target = new_environment(tmp_path_factory.mktemp("pictured"), packages)
    install(installed.wheel, target)
    return Installed(installed.wheel, target / "bin")


@contextmanager
def with_budget(installed: Installed, folder: Path) -> Iterator[tuple[httpx2.Client, str]]:
    """An admin's client of a service that has a budget with a step, and the budget's id."""
    with installed.served(folder) as port:
        made = installed.run("epsilon-ledger", "keys", "create", "--org", "default", "--role", "admin", cwd=folder)
        key = json.loads(made.stdout)["key"]
        headers = {"Authorization": f"Bearer {key}"}
        base = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=base, headers=headers, timeout=60, trust_env=False) as client:
            terms = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
            limit = {"limit": {"epsilon": 3.0, "delta": 1e-5}}
            client.post("/v1/populations", json={"name": "p", **terms, **limit}).raise_for_status()
            budget = client.post("/v1/budgets", json={"parent": "p", "name": "b", **limit}).raise_for_status().json()
            event = {"type": "gaussian", "noise_multiplier": 5.0}
            run = client.post("/v1/runs", json={"budget": "p/b", "name": "r", "event": event})
            client.post(f"/v1/runs/{run.raise_for_status().json()['id']}/steps", json={}).raise_for_status()
            same = {"Sec-Fetch-Site": "same-origin", "Origin": base}
            assert client.post("/sign-in", data={"key": key}, headers=same).status_code == 303
            yield client, budget["id"]


def test_no_package_of_an_extra_is_installed(bare: Installed, tmp_path: Path) -> None:
    for module in ("matplotlib", "psycopg", "opentelemetry.sdk", "sklearn", "epsilon_ledger"):
        missed = bare.run("python", "-c", f"import {module}", cwd=tmp_path)
        assert "ModuleNotFoundError" in missed.stderr, module


def test_every_module_can_be_imported_without_extras(bare: Installed, tmp_path: Path) -> None:
    (tmp_path / "each.py").write_text(
        "import importlib, pkgutil, app\n"
        "names = [one.name for one in pkgutil.walk_packages(app.__path__, 'app.') if '.demo' not in one.name]\n"
        "names = [name for name in names if not name.startswith('app.migrations')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    done = bare.run("python", "each.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 200


def test_without_charts_an_image_is_a_problem_and_pages_have_none(bare: Installed, tmp_path: Path) -> None:
    with with_budget(bare, tmp_path) as (client, account):
        for kind in ("svg", "png"):
            refused = client.get(f"/v1/accounts/{account}/history.{kind}")
            assert (refused.status_code, refused.json()["code"]) == (501, "charts_not_installed")
            assert "pip install 'epsilon-ledger[charts]'" in refused.json()["detail"]
        assert client.get(f"/v1/accounts/{account}/history").json()["points"]
        page = client.get(f"/accounts/{account}")
        assert page.status_code == 200
        assert "<canvas" in page.text
        assert "history.svg" not in page.text
        stranger = httpx2.get(f"{client.base_url}/v1/accounts/{account}/history.svg", trust_env=False)
        assert stranger.status_code == 401


def test_with_charts_there_are_images_and_their_folder_is_the_temporary_one(
    pictured: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, final = stages()
    set_by_image = dict(word.split("=", 1) for word in only(final, "ENV").arguments.split())
    folder = Path(set_by_image["MPLCONFIGDIR"])
    assert folder.parent == Path("/tmp")  # noqa: S108 - in the image, where all else may be read-only
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / folder.name))
    served = tmp_path / "served"
    served.mkdir()
    with with_budget(pictured, served) as (client, account):
        drawn = client.get(f"/v1/accounts/{account}/history.svg")
        assert (drawn.status_code, drawn.headers["content-type"]) == (200, "image/svg+xml")
        assert f"/v1/accounts/{account}/history.svg" in client.get(f"/accounts/{account}").text
    assert (tmp_path / folder.name).is_dir()


@pytest.mark.parametrize("command", [["serve"], ["verify"]])
def test_without_postgresql_every_command_says_what_to_install(
    bare: Installed, tmp_path: Path, command: list[str]
) -> None:
    url = "postgresql://ledger:secret@127.0.0.1:1/ledger"
    refused = bare.run("epsilon-ledger", *command, cwd=tmp_path, EPSILON_LEDGER_DATABASE_URL=url)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "pip install 'epsilon-ledger[postgresql]'" in said
    assert "Traceback" not in said
    assert "secret" not in said


def test_without_telemetry_it_serves_and_warns(bare: Installed, tmp_path: Path) -> None:
    asked = "from app.main import create_app; from app.settings import Settings; create_app(Settings())"
    done = bare.run("python", "-c", asked, cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "pip install 'epsilon-ledger[telemetry]'" in done.stderr
