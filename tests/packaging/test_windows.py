"""What Windows lacks holds back no import; a ledger is refused there in a sentence, and a client is not."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from app.ledger.errors import InvalidInputError
from app.persistence.database import Database
from tests.packaging.dockerfile import ROOT

LACKING = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")

WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({LACKING}))\n"

IMPORTS = """
import importlib, pkgutil, app, epsilon_ledger
names = [one.name for one in pkgutil.walk_packages(app.__path__, "app.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""

COMMANDS = """
sys.argv = ["epsilon-ledger", *ARGUMENTS]
from app.cli import main
sys.platform = "win32"  # after the imports of the standard library, which looks at it too
main()
"""


def without(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    done = without(IMPORTS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 200


@pytest.mark.parametrize("arguments", [["serve"], ["verify"]])
def test_a_command_that_opens_a_ledger_says_where_it_runs(tmp_path: Path, arguments: list[str]) -> None:
    refused = without(COMMANDS.replace("ARGUMENTS", repr(arguments)), tmp_path)
    assert refused.returncode != 0
    assert "on Windows, use WSL or the container image" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_asks_a_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "a-key")
    refused = without(COMMANDS.replace("ARGUMENTS", '["export-config"]'), tmp_path)
    assert "http://127.0.0.1:1 does not answer" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_database_is_refused_on_windows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Database(url).dispose()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InvalidInputError, match="Linux or macOS"):
        Database(url)


def test_uvloop_is_wanted_where_it_is_built() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [uvloop] = [each for each in map(Requirement, project["dependencies"]) if each.name == "uvloop"]
    assert isinstance(uvloop.marker, Marker)
    wanted = {name: uvloop.marker.evaluate({"platform_system": name}) for name in ("Linux", "Darwin", "Windows")}
    assert wanted == {"Linux": True, "Darwin": True, "Windows": False}
