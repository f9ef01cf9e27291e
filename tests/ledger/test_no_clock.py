"""The rules are given the moment; they never ask a clock."""

import ast
from pathlib import Path

import app.accounting
import app.ledger

CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}


def test_no_rule_asks_a_clock() -> None:
    for package in (app.ledger, app.accounting):
        for module in Path(str(package.__file__)).parent.rglob("*.py"):
            asked = {node.attr for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Attribute)}
            assert not CLOCKS & asked, module
