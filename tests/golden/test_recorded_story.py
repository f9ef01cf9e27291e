"""The story's answers and rows are as recorded; `python -m tests.golden.test_recorded_story` records them again."""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2
import pytest

from app.api.openapi import EXAMPLES_FILE
from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.persistence.tables import metadata
from tests.clocks import stand_at
from tests.conftest import SAMPLED, Ledger, open_ledger
from tests.golden.further_requests import send_the_rest
from tests.golden.recorded_examples import FLEETING, Exchange, examples_of
from tests.persistence.dump import dump

FOLDER = Path(__file__).parent
FILES = {name: FOLDER / name for name in ("answers.json", "rows.json")} | {"examples.json": EXAMPLES_FILE}
BEGUN = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMIT = {"epsilon": 3.0, "delta": 1e-5}
PEOPLE = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
QUIET = {"type": "gaussian", "noise_multiplier": 40.0}
WHY = "The board has met."
_HASH_BYTES: Final = 32
_HEADERS: Final = ("cache-control", "content-type", "etag", "idempotent-replayed", "location", "retry-after", "allow")


class Recorder:
    """Send the requests of a story to a ledger, and keep the answers that have a name."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, str] = {}
        self.exchanges: list[Exchange] = []
        self.answers: dict[str, Any] = {}

    def ask(
        self,
        name: str | None,
        role: str,
        request: str,
        body: object = None,
        **headers: str,
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request.

        Args:
            name: of the snapshot; None: none is kept.
            role: whose key is sent.
            request: method and path.
            body: JSON, or None.
            headers: further ones, with underscores.

        Returns:
            The answer's JSON.
        """
        method, _, path = request.partition(" ")
        sent = self._ledger.headers(role) | {name.replace("_", "-"): value for name, value in headers.items()}
        reply: httpx2.Response = self._ledger.http.request(method, path, json=body, headers=sent)
        answer = reply.json()
        self.exchanges.append(Exchange(method, path, body, reply.status_code, answer))
        if name is not None:
            shown = {name: reply.headers[name] for name in _HEADERS if name in reply.headers}
            kept = {"request": request, "status": reply.status_code, "headers": shown, "answer": answer}
            self.answers[name] = self.steadied(kept)
        else:
            assert reply.is_success, reply.text
        return answer

    def make(self, name: str | None, role: str, request: str, body: object = None, **headers: str) -> str:
        """Send a request that creates something, and return its id."""
        return str(self.ask(name, role, request, body, **headers)["id"])

    def steadied(self, found: Any) -> Any:  # noqa: ANN401 - JSON
        """Replace all that differs from run to run."""
        if isinstance(found, dict):
            return {
                self.steadied(key): "CURSOR" if key == "next" and value is not None else self.steadied(value)
                for key, value in found.items()
            }
        if isinstance(found, list | tuple):
            return [self.steadied(value) for value in found]
        if isinstance(found, str) and found[:1] in ("{", "["):
            with suppress(ValueError):
                return self.steadied(json.loads(found))
        return self._scalar(found)

    def _scalar(self, found: object) -> object:
        if isinstance(found, datetime):
            return "MOMENT"
        if isinstance(found, bytes):
            return self._scalar(found.hex()) if len(found) == _HASH_BYTES else f"{len(found)} bytes"
        if isinstance(found, float):
            return float(f"{found:.9g}")  # the last digits are the processor's
        return FLEETING.sub(self._steady, found) if isinstance(found, str) else found

    def _steady(self, match: re.Match[str]) -> str:
        kind = match["kind"] or match.lastgroup or ""
        numbered = match["id"] or match["hash"] or match["secret"] or match["tag"]
        if not numbered:
            return str(next(name for name, text in match.groupdict().items() if text)).upper()
        if numbered not in self._known:
            self._known[numbered] = f"{kind}#{sum(each.startswith(kind + '#') for each in self._known.values()) + 1}"
        return self._known[numbered]


def send(story: Recorder) -> None:
    """Send every request of the story."""
    population = story.make(
        "population", "admin", "POST /v1/populations", PEOPLE | {"name": "mimic", "limit": LIMIT | {"epsilon": 8.0}}
    )
    team = {"name": "team", "parent": "mimic", "limit": LIMIT, "planned": [{"event": SAMPLED, "count": 500}]}
    budget = story.make("budget", "budget_admin", "POST /v1/budgets", team)
    run = _train(story)
    _reserve(story)
    _govern(story, budget)
    _notify(story, budget)
    _read(story, population, budget, run)
    _plan(story)
    _fail(story, run)


def _train(story: Recorder) -> str:
    body = {"name": "model", "budget": "mimic/team", "event": SAMPLED}
    run = story.make("run", "trainer", "POST /v1/runs", body)
    steps = f"POST /v1/runs/{run}/steps"
    story.ask("admitted", "trainer", steps, {"first_step": 0, "count": 10}, Idempotency_Key="first")
    story.ask("refused", "trainer", steps, {"count": 10**7})
    story.ask("previewed", "trainer", f"{steps}?dry_run=true", {"count": 100})
    story.ask("events", "trainer", steps, {"events": [{"event": QUIET, "count": 2}, {"event": SAMPLED}]})
    story.ask("truncated", "trainer", steps, {"event": QUIET, "count": 10**7, "on_exceed": "truncate"})
    story.ask("attempt", "trainer", f"POST /v1/runs/{run}/attempts", {})
    return run


def _reserve(story: Recorder) -> None:
    story.make(None, "budget_admin", "POST /v1/budgets", {"name": "other", "parent": "mimic", "limit": LIMIT})
    run = story.make(None, "trainer", "POST /v1/runs", {"name": "planned", "budget": "mimic/other", "event": QUIET})
    plan = {"events": [{"event": QUIET, "count": 4}], "lease_seconds": 600}
    kept = story.make("reservation", "trainer", f"POST /v1/runs/{run}/reservations", plan)
    story.ask("committed", "trainer", f"POST /v1/reservations/{kept}/commit", {"steps_executed": 3})
    story.ask("completed", "trainer", f"POST /v1/runs/{run}/complete", {})
    large = {"budget": "mimic/other", "event": QUIET, "reserve": [{"event": QUIET, "count": 400}]}
    story.make(None, "trainer", "POST /v1/runs", large | {"name": "holds", "lease_seconds": 600})
    story.make("waiting", "trainer", "POST /v1/runs", large | {"name": "waits", "wait_until": "2026-02-01T00:00:00Z"})
    sweep = {"name": "sweep", "budget": "mimic/other", "charging_mode": "each_run"}
    story.make("experiment", "trainer", "POST /v1/experiments", sweep)


def _govern(story: Recorder, budget: str) -> None:
    limit = f"POST /v1/accounts/{budget}/limit"
    raised = {"limit": LIMIT | {"epsilon": 2.95}, "reason": WHY}
    story.ask("limit", "budget_admin", limit, {"limit": LIMIT | {"epsilon": 2.9}, "reason": WHY}, If_Match="*")
    proposed = story.make("proposal", "planner", limit, raised, If_Match="*")
    story.ask("approved", "privacy_officer", f"POST /v1/proposals/{proposed}/approve", {"reason": WHY})
    rules = {"max_epsilon": 10.0, "mechanisms": ["gaussian"], "approval_above_epsilon": 2.0}
    policy = f"PUT /v1/accounts/{budget}/policy"
    story.ask("policy", "privacy_officer", policy, {"policy": rules, "reason": WHY}, If_Match="*")
    story.make("key", "admin", "POST /v1/api-keys", {"name": "ci", "role": "trainer", "scope": "mimic/team"})


def _notify(story: Recorder, budget: str) -> None:
    settings = {"thresholds": [0.5, 0.9], "forecast_days": 14}
    story.ask("alert settings", "privacy_officer", f"PUT /v1/accounts/{budget}/alert-settings", settings)
    story.ask("forecast", "viewer", f"GET /v1/accounts/{budget}/forecast")
    story.ask("equivalents", "viewer", f"GET /v1/accounts/{budget}/equivalents?delta=1e-9")
    receiver = story.make("receiver", "privacy_officer", "POST /v1/receivers", {"url": "https://alerts.example/in"})
    story.make("delivery", "privacy_officer", f"POST /v1/receivers/{receiver}/test")


def _read(story: Recorder, population: str, budget: str, run: str) -> None:
    story.ask("population later", "viewer", f"GET /v1/populations/{population}")
    story.ask("run later", "viewer", f"GET /v1/runs/{run}")
    story.ask("run history", "viewer", f"GET /v1/runs/{run}/history?max_points=3")
    story.ask("account history", "viewer", f"GET /v1/accounts/{budget}/history?max_points=3")
    story.ask("statement", "viewer", f"GET /v1/runs/{run}/statement")
    story.ask("decisions", "viewer", "GET /v1/decisions?limit=1")
    story.ask("audit events", "auditor", "GET /v1/audit-events?limit=1")
    story.ask("checkpoint", "auditor", "POST /v1/checkpoints")
    story.ask("verification", "auditor", "POST /v1/verifications")


def _plan(story: Recorder) -> None:
    target: dict[str, object] = {"event": SAMPLED, **LIMIT}
    mixed = [{"event": SAMPLED, "count": 100}, {"event": {"type": "laplace", "noise_multiplier": 50.0}}]
    story.ask("planned epsilon", "viewer", "POST /v1/accounting/epsilon", {"events": mixed, "delta": 1e-5})
    story.ask("planned noise", "viewer", "POST /v1/accounting/noise-multiplier", target | {"count": 500})
    story.ask("planned steps", "viewer", "POST /v1/accounting/steps", target)


def _fail(story: Recorder, run: str) -> None:
    steps = f"POST /v1/runs/{run}/steps"
    story.ask("gap", "trainer", steps, {"first_step": 300, "attempt": 2})
    story.ask("forbidden mechanism", "trainer", steps, {"event": {"type": "exponential", "epsilon": 1.0}, "attempt": 2})
    story.ask("bad fields", "trainer", steps, {"event": {"type": "gaussian", "noise_multiplier": -1.0}, "cuont": 1})
    story.ask("no role", "viewer", steps, {})
    story.ask("nothing there", "viewer", "GET /v1/runs/run_nowhere")
    story.ask("no method", "viewer", "DELETE /v1/runs")


@contextmanager
def _recorded(folder: Path) -> Iterator[dict[str, str]]:
    """The story's answers, and the rows that it left, by the names of their files."""
    with pytest.MonkeyPatch.context() as patch:
        moments, numbers = count(), count(1)
        stand_at(patch, lambda: BEGUN + timedelta(milliseconds=next(moments)))
        patch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
        patch.setattr(secrets, "randbits", lambda bits: 1 << (bits - 1))
        url = f"sqlite:///{folder / 'story.db'}"
        upgrade(database := Database(url))
        database.dispose()
        with open_ledger(folder, url) as ledger:
            story = Recorder(ledger)
            send(story)
            rows = story.steadied(dump(ledger.database))
            send_the_rest(story.ask)
        examples = examples_of(story.exchanges)
        yield {"answers.json": _text(story.answers), "rows.json": _lines(rows), "examples.json": _by_name(examples)}


def _text(found: object) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _by_name(examples: dict[str, Any]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in examples.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(rows: dict[str, list[list[Any]]]) -> str:
    """A line for each row, without what is null."""
    written = [
        json.dumps(
            {"table": name} | {column: value for column, value in zip(columns, row, strict=True) if value is not None}
        )
        for name, kept in rows.items()
        for columns in [metadata.tables[name].c.keys()]
        for row in kept
    ]
    return "[\n" + ",\n".join(written) + "\n]\n"


@pytest.mark.parametrize("name", FILES)
def test_story_reads_as_recorded(recorded: dict[str, str], name: str) -> None:
    assert json.loads(recorded[name]) == json.loads(FILES[name].read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with _recorded(tmp_path_factory.mktemp("story")) as texts:
        yield texts


if __name__ == "__main__":
    with TemporaryDirectory() as folder, _recorded(Path(folder)) as texts:
        for name, text in texts.items():
            FILES[name].write_text(text)
