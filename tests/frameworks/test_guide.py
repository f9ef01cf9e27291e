"""The guide, followed from its first block to its last: in one shell, and one Python session."""

import os
import re
import socket
from itertools import pairwise

import pytest

from tests import programs
from tests.docs.markdown import ROOT, Fence, fences
from tests.fork_server import service_server

GUIDE = fences((ROOT / "docs" / "tutorial" / "train-a-model.md").read_text())
SEPARATOR = "\x1e"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What each block of code wrote, by its line."""
    folder = tmp_path_factory.mktemp("guide")
    service_server().write_environment(folder / ".venv")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    code = [block for block in GUIDE if block.language in {"bash", "python"}]
    cells = [block.text for block in code if block.language == "python"]
    (folder / "session.py").write_text(f"\nprint({SEPARATOR!r}, end='', flush=True)\n".join(cells))
    first, *others = [block.text for block in code if block.language == "bash"]
    pause = f"\nprintf '{SEPARATOR}'\n"
    script = pause.join([first.replace("8000", port), "python3 session.py", *others])
    shell = f"set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}
    done = programs.run(["bash", "-c", shell], cwd=folder, env=environment, timeout=300)
    return dict(zip((block.line for block in code), done.stdout.split(SEPARATOR), strict=True))


def test_shell_comes_first_and_last() -> None:
    languages = [block.language for block in GUIDE if block.language != "text"]
    assert languages == ["bash", *["python"] * (len(languages) - 2), "bash"]
    assert len(languages) > 10


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        pytest.param(block, answer, id=f"line {block.line}")
        for block, answer in pairwise(GUIDE)
        if answer.language == "text"
    ],
)
def test_block_answers_what_is_shown(said: dict[int, str], block: Fence, answer: Fence) -> None:
    for line in answer.text.splitlines():
        assert re.search(re.escape(line).replace("…", ".+"), said[block.line]), said[block.line]
