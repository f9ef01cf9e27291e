"""Flower's strategies and clients, with the real framework and the real service, each case in a process of its own."""

import ast
import os
from pathlib import Path

import pytest

from tests import fork_server
from tests.conftest import LiveServer
from tests.frameworks.flower import flower_environment, flower_server

MODULES = ["flower_cases", "flower_client_cases", "flower_legacy_cases"]


def cases(module: str) -> list[str]:
    """Name the cases of a module, which this process cannot import: functions without arguments."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _is_case(node)]


def _is_case(node: ast.FunctionDef) -> bool:
    return not (node.args.args or node.args.kwonlyargs or node.decorator_list)


@pytest.mark.parametrize(("module", "case"), [(module, case) for module in MODULES for case in cases(module)])
def test_flower(live_server: LiveServer, module: str, case: str) -> None:
    run(live_server, module, case)


def run(live_server: LiveServer, module: str, *arguments: str) -> None:
    access = {"EPSILON_LEDGER_URL": live_server.url, "EPSILON_LEDGER_API_KEY": live_server.key("admin")}
    done = fork_server.run(
        f"tests.frameworks.{module}",
        *arguments,
        environment=os.environ | flower_environment() | access,
        timeout=240,
        server=flower_server(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
