"""What Windows lacks holds back no import; a ledger is refused there in a sentence, and a client is not."""

import json
import sys
from pathlib import Path

import pytest

from app.ledger.errors import InvalidInputError
from app.persistence.database import Database
from tests.programs import run

PROGRAM = """
import contextlib, importlib, io, json, os, pathlib, pkgutil, re, sys
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "uvloop")))
import app, epsilon_ledger
lacking = re.compile("import (fcntl|grp|pwd|resource|termios)|uvloop")
files = {one.name: one.module_finder.find_spec(one.name).origin for one in pkgutil.walk_packages(app.__path__, "app.")}
names = [name for name, file in files.items() if lacking.search(pathlib.Path(file).read_text())]
for name in names:
    importlib.import_module(name)

from app.cli import main
sys.platform = "win32"  # after the imports of the standard library, which looks at it too
os.environ |= {"EPSILON_LEDGER_URL": "http://127.0.0.1:1", "EPSILON_LEDGER_API_KEY": "a-key"}
importlib.import_module("app.provisioning.http_api").time.sleep = lambda _: None
said = {}
for command in ("serve", "verify", "describe"):
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        sys.argv = ["epsilon-ledger", command]
        main()
    said[command] = output.getvalue()
print(json.dumps([len(names), said]))
"""


def test_modules_that_name_them_are_imported_and_commands_that_open_a_ledger_say_where_it_runs(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", PROGRAM], cwd=tmp_path)
    assert done.stderr == ""
    modules, said = json.loads(done.stdout)
    assert modules >= 3
    assert "on Windows, use WSL or the container image" in said["serve"]
    assert "on Windows, use WSL or the container image" in said["verify"]
    assert "http://127.0.0.1:1 does not answer" in said["describe"]
    assert not [text for text in said.values() if "Traceback" in text]
    assert list(tmp_path.iterdir()) == []


def test_database_is_refused_on_windows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Database(url).dispose()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(InvalidInputError, match="Linux or macOS"):
        Database(url)
