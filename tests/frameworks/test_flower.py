"""The tests of Flower, with the real framework and the real service, in a process that can import Flower."""

import os
import sys
from pathlib import Path

from tests import programs
from tests.conftest import LiveServer
from tests.fork_server import ROOT
from tests.frameworks.flower import flower_environment

MODULES = sorted(Path(__file__).parent.glob("test_flower_*.py"))


def test_rounds_and_replies_of_flower_are_charged(live_server: LiveServer) -> None:
    access = {"EPSILON_LEDGER_URL": live_server.url, "EPSILON_LEDGER_API_KEY": live_server.key("admin")}
    # Fixtures are of no use there, and warnings of Flower's are not ours.
    command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:warnings", "-p", "no:cacheprovider"]
    environment = os.environ | flower_environment() | access
    assert " passed" in programs.run([*command, *MODULES], cwd=ROOT, env=environment, timeout=300).stdout
