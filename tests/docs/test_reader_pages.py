"""The pages for readers and privacy officers, done: every block of commands is run on a real server."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.docs.markdown import ROOT, Block, blocks
from tests.docs.operator_shell import OperatorShell

Scene = Callable[..., None]
"""Types the blocks of a section, which it is given after the shell."""

NAMES = " ".join(f"{name}=$KEY" for name in ("ADMIN", "AUDITOR", "TRAINER", "VIEWER"))
AGREES = "every curve agrees byte for byte"
NOT_RUN = {
    "node examples/verify.mjs export mimic.jsonl                     # the hash chains of an export": (
        "tests/examples/test_verify_in_javascript.py runs each of them"
    ),
}
"""By a block's first line: why it is not run."""


def typed(shell: OperatorShell, block: Block, *changes: tuple[str, str], whatever_happens: bool = False) -> str:
    """Type a block with other names, as a reader would have them; the block itself counts as run."""
    text = block.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    said = shell.type(replace(block, text=text), whatever_happens=whatever_happens)
    shell.ran.append(block)
    return said


def answers(*words: str, steps: int = 0, named: bool = False, changes: tuple[tuple[str, str], ...] = ()) -> Scene:
    """A scene that types its blocks, each of which says a word; `RUN` in it is the id of a run of some steps.

    If `named`, keys and addresses have the names that the pages use.
    """

    def scene(shell: OperatorShell, *blocks: Block) -> None:
        run = shell.run("of the page", steps) if steps else ""
        if named:
            shell.type(Block("test", "", 0, f"export LEDGER=http://localhost:8000 RUN={run} {NAMES}"))
        for block, word in zip(blocks, words, strict=True):
            assert word.replace("RUN", run) in typed(shell, block, *changes)

    return scene


def play(shell: OperatorShell, scene: Scene, found: list[Block]) -> None:
    """Let a scene type its blocks, all of them."""
    shell.begin()
    scene(shell, *found)
    assert {block.line for block in found} <= {block.line for block in shell.ran}


def signing_key(shell: OperatorShell, make: Block) -> None:
    """In a folder of its own: the service that runs here has a key already."""
    shell.type(replace(make, text=f"mkdir -p own\ncd own\n{make.text} --help"))
    shell.ran.append(make)
    assert "BEGIN PUBLIC KEY" in (shell.folder / "own" / "signing.pub").read_text()


def statements(shell: OperatorShell, ask: Block, verify: Block, script: Block) -> None:
    run, population = shell.run("of the statement", 2), shell.find("populations", "mimic")
    answers(named=True)(shell)
    said = shell.type(ask, run=run, pop=population)
    assert said.count('"signature"') == 2
    assert "<html" in said
    save = f"""curl -H "Authorization: Bearer $VIEWER" localhost:8000/v1/runs/{run}/statement > statement.json
curl -H "Authorization: Bearer $VIEWER" localhost:8000/v1/signing-key > key.json
cp {ROOT}/app/api/verify_statement.sh ."""
    shell.type(Block("test", "", 0, save))
    (shell.folder / "signing.pub").write_text(json.loads((shell.folder / "key.json").read_text())["public_key"])
    for block in (verify, script):
        assert run in shell.type(block), block


def registry_entries(shell: OperatorShell, ask: Block, write: Block) -> None:
    run, population = shell.run("of the entry", 2), shell.find("populations", "mimic")
    answers(named=True)(shell)
    assert shell.type(ask, run=run, pop=population).count('"missing"') == 2
    assert "Hospital of Exampleton" in shell.type(write, pop=population)


def checkpoints(shell: OperatorShell, sign: Block) -> None:
    answers(AGREES, named=True)(shell, sign)
    assert json.loads((shell.folder / "checkpoint.json").read_text())["signature"]


def lift(shell: OperatorShell, commands: Block) -> None:
    """Nothing is in quarantine: the commands are understood, and say so."""
    answers(named=True)(shell)
    budget = shell.find("budgets", "icu-team")
    said = typed(shell, commands, ("bud_…", budget), whatever_happens=True)
    assert "No account is quarantined." in said
    assert "Neither mimic/icu-team nor an account under it is quarantined." in said


def verify(shell: OperatorShell, commands: Block) -> None:
    answers(named=True)(shell)
    said = shell.type(commands)
    assert (said.count(AGREES), '"discrepancies"' in said) == (2, True)


def seen_hash(shell: OperatorShell, compare: Block) -> None:
    run = shell.run("seen", 1)
    with shell.admin as http:
        [decision] = http.get(f"/v1/decisions?run={run}").json()["items"]
    shell.type(Block("test", "", 0, "epsilon-ledger export --population mimic > mimic.jsonl"))
    assert run in typed(shell, compare, ("5f0c…", decision["hash"]))


def picture(shell: OperatorShell, fetch: Block) -> None:
    answers("", steps=3, named=True)(shell, fetch)
    assert (shell.folder / "epsilon.svg").read_text().lstrip().startswith("<")


def trace(shell: OperatorShell, command: Block) -> None:
    said = typed(shell, command, (".venv/bin/python", f"cd {ROOT} && {sys.executable}"))
    assert "switches between files" in said
    assert "decide_command" in said
    assert not (ROOT / ".exported").exists()  # what the shell remembers stays in its folder


READER_SCENES: dict[tuple[str, str], Scene] = {
    ("how-to/issue-statements", "Configure a signing key"): signing_key,
    ("how-to/issue-statements", "Statements"): statements,
    ("how-to/issue-statements", "Publish in the registry of deployments"): registry_entries,
    ("how-to/issue-statements", "Checkpoints"): checkpoints,
    ("how-to/read-the-audit-log", "Decisions about steps"): answers('"items"'),
    ("how-to/read-the-audit-log", "Audit events"): answers('"items"'),
    ("how-to/run-experiments", "Charge each run"): answers('"charging_mode":"each_run"', named=True),
    ("how-to/run-experiments", "Charge all at once"): answers(
        '"trials":', named=True, changes=(("mimic/icu-team", "mimic"),)
    ),
    ("operations/quarantine", "Commands"): lift,
    ("explanation/verification", ""): verify,
    ("explanation/verification", "Limits of verification"): seen_hash,
    ("reference/export-format", "Exports"): answers("RUN", steps=1),
    ("reference/charts", "Pictures"): picture,
    ("contributing/request-flow", "How to follow one step"): trace,
}
"""By page and section: who types its blocks."""
SLOW = {("contributing/request-flow", "How to follow one step")}


def blocks_of(scene: tuple[str, str]) -> list[Block]:
    page, section = scene
    return [block for block in blocks(page) if block.section == section and block.first_line not in NOT_RUN]


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "scene",
    [pytest.param(each, marks=[pytest.mark.soak] * (each in SLOW), id=" ".join(each)) for each in READER_SCENES],
)
def test_commands_of_a_section_have_the_results_it_states(shell: OperatorShell, scene: tuple[str, str]) -> None:
    play(shell, READER_SCENES[scene], blocks_of(scene))
