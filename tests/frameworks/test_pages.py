"""Every Python snippet of the pages about frameworks runs, in order, in one session a page, against a real service."""

import os
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.conftest import LiveServer
from tests.docs.markdown import ROOT, fences
from tests.frameworks.flower import flower_environment

PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
IN_FLOWER = {"flower"}
"""Pages whose framework is installed beside the others."""
UNLOCKED = {"mindspore": "mindspore"}
"""Pages whose framework is not installed by `make test`, with its module."""

SLOW = {"flower", "jax-privacy", "keras", "transformers"}
"""Pages that simulate clients, train what is larger, or wrap what another page trains: `make soak` runs them."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.soak if page.stem in SLOW else ()) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_snippets_of_page_run(page: Path, live_server: LiveServer, tmp_path: Path) -> None:
    if page.stem in UNLOCKED:
        pytest.importorskip(UNLOCKED[page.stem])
    snippets = [block.text for block in fences(page.read_text()) if block.language == "python"]
    assert snippets
    (tmp_path / "session.py").write_text("\n".join(snippets))
    environment = os.environ | {
        "EPSILON_LEDGER_URL": live_server.url,
        "EPSILON_LEDGER_API_KEY": live_server.key("admin", page.stem),
        "OMP_NUM_THREADS": "1",
    }
    if page.stem in IN_FLOWER:
        environment |= flower_environment()
    programs.run([sys.executable, "session.py"], cwd=tmp_path, env=environment, timeout=300)
