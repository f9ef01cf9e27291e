"""What stands on the pages for readers and privacy officers, typed into the operator's shell."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace

from tests.docs.markdown import ROOT, Block
from tests.docs.operator_shell import OperatorShell


def _changed(block: Block, *changes: tuple[str, str]) -> Block:
    """A block with other names, as a reader would have them."""
    text = block.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return replace(block, text=text)


def _prepared(shell: OperatorShell, run: str = "") -> None:
    """The names of keys and addresses that the pages use."""
    names = " ".join(f"{name}=$KEY" for name in ("ADMIN", "AUDITOR", "TRAINER", "VIEWER"))
    shell.type(Block("test", "", 0, f"export LEDGER=http://localhost:8000 RUN={run} {names}"))


def _typed(shell: OperatorShell, block: Block, *changes: tuple[str, str], whatever_happens: bool = False) -> str:
    """Type a block with other names; the block itself counts as run."""
    said = shell.type(_changed(block, *changes), whatever_happens=whatever_happens)
    shell.ran.append(block)
    return said


def answers(*words: str) -> Callable[..., None]:
    """A scene that types its blocks, each of which says a word."""

    def scene(shell: OperatorShell, *blocks: Block) -> None:
        for block, word in zip(blocks, words, strict=True):
            assert word in shell.type(block)

    return scene


def signing_key(shell: OperatorShell, make: Block) -> None:
    """In a folder of its own: the service that runs here has a key already."""
    _typed(shell, replace(make, text=f"mkdir -p own\ncd own\n{make.text} --help"))
    shell.ran.append(make)
    assert "BEGIN PUBLIC KEY" in (shell.folder / "own" / "signing.pub").read_text()


def statements(shell: OperatorShell, ask: Block) -> None:
    run = shell.run("of the statement", 2)
    with shell.admin as http:
        [population] = [each["id"] for each in http.get("/v1/populations").json()["items"] if each["name"] == "mimic"]
    _prepared(shell)
    said = shell.type(ask, run=run, pop=population)
    assert said.count('"signature"') == 2
    assert "<html" in said


def checkpoints(shell: OperatorShell, sign: Block) -> None:
    _prepared(shell)
    assert "every curve agrees byte for byte" in shell.type(sign)
    assert json.loads((shell.folder / "checkpoint.json").read_text())["signature"]


def charge_each_run(shell: OperatorShell, create: Block) -> None:
    _prepared(shell)
    assert json.loads(shell.type(create))["charging_mode"] == "each_run"


def charge_all_at_once(shell: OperatorShell, create: Block) -> None:
    _prepared(shell)
    assert json.loads(_typed(shell, create, ("mimic/icu-team", "mimic")))["trials"] >= 1


def lift(shell: OperatorShell, commands: Block) -> None:
    """Nothing is in quarantine: the commands are understood, and say so."""
    _prepared(shell)
    with shell.admin as http:
        [budget] = [each["id"] for each in http.get("/v1/budgets").json()["items"] if each["name"] == "icu-team"]
    said = _typed(shell, commands, ("bud_…", budget), whatever_happens=True)
    assert "No account is quarantined." in said
    assert "Neither mimic/icu-team nor an account under it is quarantined." in said


def verify(shell: OperatorShell, commands: Block) -> None:
    _prepared(shell)
    said = shell.type(commands)
    assert said.count("every curve agrees byte for byte") == 2
    assert '"discrepancies"' in said


def seen_hash(shell: OperatorShell, compare: Block) -> None:
    run = shell.run("seen", 1)
    with shell.admin as http:
        [decision] = http.get(f"/v1/decisions?run={run}").json()["items"]
    shell.type(Block("test", "", 0, "epsilon-ledger export --population mimic > mimic.jsonl"))
    assert run in _typed(shell, compare, ("5f0c…", decision["hash"]))


def export(shell: OperatorShell, commands: Block) -> None:
    run = shell.run("exported", 1)
    assert run in shell.type(commands)


def picture(shell: OperatorShell, fetch: Block) -> None:
    _prepared(shell, shell.run("drawn", 3))
    shell.type(fetch)
    assert (shell.folder / "epsilon.svg").read_text().lstrip().startswith("<")


def trace(shell: OperatorShell, command: Block) -> None:
    said = _typed(shell, command, (".venv/bin/python", f"cd {ROOT} && {sys.executable}"))
    assert "switches between files" in said
    assert "decide_command" in said
    assert not (ROOT / ".exported").exists()  # what the shell remembers stays in its folder


READER_SCENES: dict[tuple[str, str], Callable[..., None]] = {
    ("how-to/issue-statements", "Configure a signing key"): signing_key,
    ("how-to/issue-statements", "Statements"): statements,
    ("how-to/issue-statements", "Checkpoints"): checkpoints,
    ("how-to/read-the-audit-log", "Decisions about steps"): answers('"items"'),
    ("how-to/read-the-audit-log", "Audit events"): answers('"items"'),
    ("how-to/run-experiments", "Charge each run"): charge_each_run,
    ("how-to/run-experiments", "Charge all at once"): charge_all_at_once,
    ("operations/quarantine", "Commands"): lift,
    ("explanation/verification", ""): verify,
    ("explanation/verification", "Limits of verification"): seen_hash,
    ("reference/export-format", "Exports"): export,
    ("reference/charts", "Pictures"): picture,
    ("contributing/request-flow", "How to follow one step"): trace,
}
"""By page and section: who types its blocks."""
