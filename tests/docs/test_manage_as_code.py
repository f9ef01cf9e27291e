"""The page on organisations as code, typed into one shell beside a server, and its file applied."""

import os
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from app.provisioning.document import read_document
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT, Fence, fences
from tests.fork_server import service_server
from tests.programs import run

BLOCKS = fences((ROOT / "docs" / "how-to" / "manage-as-code.md").read_text())
SEPARATOR = "\x1e"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, live_server: LiveServer) -> list[tuple[Fence, str]]:
    """What each block of commands wrote."""
    folder: Path = tmp_path_factory.mktemp("shell")
    programs = service_server().write_environment(folder / ".venv")
    shutil.copy(ROOT / "examples" / "organisation.yaml", folder)
    typed = [block for block in BLOCKS if block.language == "bash"]
    script = f"\nprintf '{SEPARATOR}'\n".join(block.text for block in typed)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}
    kept |= {"PATH": f"{programs}:{os.environ['PATH']}", "KEY": live_server.key("admin", "code")}
    script = "exec 2>&1\n" + script.replace("http://localhost:8000", live_server.url)
    done = run(["bash", "-uc", script], cwd=folder, env=kept)
    assert (folder / "changes.json").read_text().startswith('{"changes": [')
    return list(zip(typed, done.stdout.split(SEPARATOR), strict=True))


def test_block_of_commands_answers_as_shown(said: list[tuple[Fence, str]]) -> None:
    following = dict(pairwise(BLOCKS))
    compared = 0
    for block, output in said:
        answer = following.get(block)
        if answer is not None and answer.language == "text":
            for line in answer.text.splitlines():
                assert re.search(f"(?m)^{re.escape(line).replace('…', '.+')}$", output), output
                compared += 1
    assert compared > 15


def test_file_on_the_page_is_valid() -> None:
    (shown,) = [block for block in BLOCKS if block.language == "yaml"]
    assert read_document(shown.text.encode(), "page").populations[0].budgets[0].name == "icu-team"
