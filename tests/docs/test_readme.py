"""Run the commands of the README, the first tutorial and the guides in HTTP, and compare the answers shown."""

import json
import os
import re
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from app.demo.training import DELTA, EPSILON, MODEL, step_event
from epsilon_ledger import BudgetExceededError, LedgerClient, Limit
from tests.conftest import Ledger, LiveServer
from tests.docs.markdown import ROOT, Fence, fences, section
from tests.fork_server import service_server
from tests.postgres import free_port
from tests.programs import run

README = (ROOT / "README.md").read_text()
FIRST = "tutorial/first-budget"
FURTHER = ("authorize-steps", "send-alerts", "arrange-budgets", "share-budgets")
PAGES = {
    page: fences((ROOT / "docs" / f"{page}.md").read_text()) for page in (FIRST, *(f"how-to/{p}" for p in FURTHER))
}
SEPARATOR = "\x1e"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each bash block wrote, by its text: all pages in one shell.

    The tutorial ends its service. It is started again for the guides, each in an organisation of its own.
    """
    first, *guides = ([fence for fence in page if fence.language == "bash"] for page in PAGES.values())
    further = [Fence("bash", "wait $SERVER\n", 0), first[1]]
    for name, guide in zip(FURTHER, guides, strict=True):
        create = f"KEY=$(epsilon-ledger init --org {name} --new-key --json | field key)\n"
        further += [Fence("bash", create, 0), *guide]
    return ran([*first, *further], tmp_path_factory.mktemp("shell"))


def ran(blocks: list[Fence], folder: Path) -> dict[str, str]:
    """What blocks wrote in one shell, in an empty folder."""
    service_server().write_environment(folder / ".venv")
    port = str(free_port())
    assert any("8000" in block.text for block in blocks)
    script = f"\nprintf '{SEPARATOR}'\n".join(block.text.replace("8000", port) for block in blocks)
    # If a block fails, the service must not outlive the test.
    script = f"set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EPSILON_LEDGER_")}
    done = run(["bash", "-c", script], cwd=folder, env=kept)
    assert done.stderr == f"Created a new ledger at {folder / 'epsilon-ledger.db'}.\n"
    assert sorted(path.name for path in folder.iterdir() if path.suffix not in {".db-wal", ".db-shm"}) == [
        ".venv",
        "epsilon-ledger.db",
    ]
    assert f"Epsilon Ledger on http://127.0.0.1:{port}, on sqlite:///{folder / 'epsilon-ledger.db'}\n" in done.stdout
    return dict(zip((block.text for block in blocks), done.stdout.split(SEPARATOR), strict=True))


def test_answer_follows_the_commands_that_it_answers() -> None:
    assert [fence.language for fence in PAGES[FIRST]].count("bash") >= 12
    for before, fence in pairwise(PAGES[FIRST]):
        assert fence.language in {"bash", "json", "text"}
        assert fence.language == "bash" or before.language == "bash"


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        pytest.param(block, answer, id=f"{page} line {block.line}")
        for page, found in PAGES.items()
        for block, answer in pairwise(found)
        if block.language == "bash" and answer.language in {"json", "text"}
    ],
)
def test_commands_answer_what_is_shown(said: dict[str, str], block: Fence, answer: Fence) -> None:
    output = said[block.text]
    if answer.language == "json":
        shown = json.loads(answer.text, parse_float=Decimal)
        real = json.loads(output[output.index("{") :])
        assert difference(shown, real) is None, output
    else:
        for line in answer.text.splitlines():
            assert line in output


def difference(shown: object, real: object, where: str = "answer") -> str | None:
    """Where an answer differs from the shortened one of the README; None if nowhere.

    Members may be left out, the end of a string may be an ellipsis, and a number may be rounded to the digits shown.
    """
    if isinstance(shown, dict) and isinstance(real, dict):
        found = (difference(value, real.get(name), f"{where}.{name}") for name, value in shown.items())
        return next((text for text in found if text), None)
    if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
        found = (difference(*pair, f"{where}[{index}]") for index, pair in enumerate(zip(shown, real, strict=True)))
        return next((text for text in found if text), None)
    if isinstance(shown, str) and isinstance(real, str) and shown.endswith("…"):
        same = real.startswith(shown.removesuffix("…"))
    elif isinstance(shown, Decimal) and isinstance(real, float):
        same = Decimal(real).quantize(shown) == shown
    else:
        same = type(shown) is type(real) and shown == real
    return None if same else f"{where} is {real!r}, not {shown!s}"


def test_difference_is_found_in_every_kind_of_value() -> None:
    real = {"id": "pop_1", "epsilon": 0.6512, "points": [{"count": 1}]}
    assert difference({"id": "pop_…", "epsilon": Decimal("0.651"), "points": [{"count": 1}]}, real) is None
    assert difference({"id": "bud_…"}, real)
    assert difference({"epsilon": Decimal("0.652")}, real)
    assert difference({"points": []}, real)
    assert difference({"points": [{"count": 2}]}, real)
    assert difference({"missing": 1}, real)


def test_python_snippet_trains_until_the_budget_is_spent(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = (fence for fence in fences(README) if fence.language == "python")
    with LedgerClient(live_server.url, live_server.key("admin", "readme")) as admin:
        limit = Limit(epsilon=0.9, delta=1e-5)
        admin.create_population(
            "mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", size=46520, limit=limit
        )
        admin.create_budget("icu-team", parent="mimic", limit=limit)
        monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
        monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("trainer", "readme"))
        released: list[int] = []
        code = compile(snippet.text, "README.md", "exec")
        shown: list[BudgetExceededError] = []
        job = {"batches": range(10_000), "train_step": released.append, "print": shown.append}
        exec(code, job)  # noqa: S102 - our own README
        (refused,) = shown
        assert refused.run is not None
        run = admin.get_run(refused.run)
        assert 10 < run.next_step == len(released) == refused.first_step
        assert run.status == "completed"

        # A run that ends before its budget does is completed too.
        more = {"batches": range(3), "train_step": released.append}
        exec(compile(snippet.text.replace("0.01, gaussian(1.1)", "0.0001, gaussian(9)"), "README.md", "exec"), more)  # noqa: S102
        assert more["run"].status == "completed"  # type: ignore[attr-defined]
        assert more["run"].next_step == 3  # type: ignore[attr-defined]


def test_sample_of_the_demo_has_the_numbers_of_the_ledger(ledger: Ledger) -> None:
    limit = {"epsilon": EPSILON, "delta": DELTA}
    ledger.population("patients", limit={"epsilon": 2 * EPSILON, "delta": DELTA})
    ledger.budget("model", "patients", limit=limit, planned=[{"event": step_event()}])
    run = ledger.run("patients/model", event=step_event())
    steps = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    found = ledger.post("/v1/accounting/steps", limit | {"event": step_event()}).json()
    more = steps - found["steps"]["without_plan"]
    spent = ledger.post(f"/v1/runs/{run}/steps", {"count": steps}).json()
    refused = ledger.post(f"/v1/runs/{run}/steps", {}).json()

    (sample,) = (fence.text for fence in fences(section(README, "Try it")) if fence.language == "text")
    assert f"sampling probability {MODEL.sampling_probability:g}, noise multiplier {MODEL.noise_multiplier:g}" in sample
    assert f"; {steps} steps fit into the budget" in sample
    assert f"allows {steps} steps, {more} more than the {steps - more} of a budget without a plan" in sample
    assert re.search(rf"steps admitted and released +│ {steps} ", sample)
    assert re.search(rf"thanks to the plan +│ {more} ", sample)
    assert re.search(rf"epsilon +│ {spent['epsilon']:.4f} at delta {DELTA:g} ", sample)
    assert re.search(rf"used share of the budget +│ {spent['used']:.1%} ", sample)
    assert (refused["plan"]["steps_remaining"], refused["max_steps_that_fit"]) == (0, 0)
    why = refused["detail"].partition(run)[2].strip().replace("patients/model", "breast-cancer-patients/tumour-model")
    assert f"Step {steps:,} of run_… {why}" in sample
