"""The rules are given the moment; they never ask a clock."""

import ast
from pathlib import Path

import pytest

import app.accounting
import app.ledger

CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}
MODULES = [
    module
    for package in (app.ledger, app.accounting)
    for module in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: f"{module.parent.name}/{module.stem}")
def test_no_rule_asks_a_clock(module: Path) -> None:
    called = [
        node.func.attr
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert not CLOCKS & set(called)
