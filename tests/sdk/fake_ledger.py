"""A ledger in memory that answers like the real one, with runs for the adapters."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx2

from epsilon_ledger import Event, LedgerClient, Limit, Run
from epsilon_ledger._run.grants import PrefetchConfig
from tests.sdk.wire import KEY, URL, Wire

RUN_ID = "run_1"
N, BATCH = 64, 8
STEPS_PER_EPOCH = N // BATCH
# What a client tries by default.
TRIES = 12
PROBLEM_JSON = "application/problem+json"

ACCOUNT = {"binding_account": "bud_1", "binding_account_path": "mimic/icu-team", "delta": 1e-5}
RUN: dict[str, Any] = ACCOUNT | {"id": RUN_ID, "name": "icu", "budget": "bud_1", "budget_path": "mimic/icu-team"}
RUN |= {"population": "pop_1", "privacy_unit": "record", "neighboring_relation": "add_or_remove_one"}
RUN |= {"status": "active", "attempt": 1, "next_step": 0, "event": {"type": "gaussian", "noise_multiplier": 2.0}}
RUN |= {"epsilon": 0, "used": 0, "steps_remaining": 10, "labels": {}, "links": [], "deployment": {}}
RUN |= {"created_at": "2026-11-21T08:00:00Z", "updated_at": "2026-11-21T08:00:00.123456Z"}
RAISED = {"account": "bud_1", "account_path": "mimic/icu-team", "epsilon": 3.25, "delta": 1e-5}
ALTERNATIVES = [
    {"type": "same_noise", "steps": 1},
    {"type": "more_noise", "steps": 4, "noise_multiplier": 3.75},
    {"type": "higher_limit", "steps": 4, "limits": [RAISED]},
]
REFUSAL: dict[str, Any] = ACCOUNT | {"decision": "refused", "run": RUN_ID, "first_step": 0, "count": 4}
REFUSAL |= {"epsilon": 2.9, "used": 0.9, "used_including_reserved": 0.95, "used_requested": 1.25}
REFUSAL |= {"limit": {"epsilon": 3.0, "delta": 1e-5}, "limit_change": None}
REFUSAL |= {"delta_requested": 0.0, "delta_left": 1e-7, "plan": None}
REFUSAL |= {"max_steps_that_fit": 1, "steps_needed": 4, "exhausted": False, "unavailable_alternatives": []}
REFUSAL |= {"alternatives": ALTERNATIVES, "url": "https://ledger.example.org/runs/run_1", "dry_run": False}
LEAST_NOISE = 1.3
"""Of what a FakeLedger previews."""
REACHED = {"complete": "completed", "abort": "aborted", "pause": "paused", "resume": "active"}


def problem(status: int, code: str, headers: dict[str, str] | None = None, /, **members: object) -> httpx2.Response:
    named = {"type": f"urn:problem-type:epsilon-ledger:{code}", "title": "A title", "status": status, "code": code}
    content = json.dumps(named | {"detail": "Why.", "request_id": "req_1"} | members)
    return httpx2.Response(status, content=content.encode(), headers={"Content-Type": PROBLEM_JSON} | (headers or {}))


@dataclass(eq=False, kw_only=True)
class FakeLedger(Wire):
    """Admits `capacity` steps of its run, notes their events, and answers a request again under its key."""

    capacity: int = 10
    run: dict[str, Any] = field(default_factory=RUN.copy)
    events: list[Event] = field(default_factory=list)
    _by_key: dict[str, tuple[bytes, httpx2.Response]] = field(default_factory=dict)

    @property
    def next_step(self) -> int:
        return len(self.events)

    @property
    def keys(self) -> list[str]:
        return [request.headers["Idempotency-Key"] for request in self.requests]

    @property
    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(request.content) for request in self.requests]

    def arrive(self, request: httpx2.Request) -> httpx2.Response:
        last = request.url.path.rsplit("/", 1)[-1]
        if last == "steps":
            return self._decide(request)
        if last in REACHED:
            if self.run["status"] in {"completed", "aborted"} and self.run["status"] != REACHED[last]:
                return problem(409, "run_state_conflict", run_status=self.run["status"])
            self.run["status"] = REACHED[last]
        named = {"name": json.loads(request.content)["name"]} if last == "runs" and request.content else {}
        spent = {"next_step": self.next_step, "epsilon": self.run["epsilon"] + 0.25 * self.next_step}
        spent["used"] = self.run["used"] + self.next_step / max(self.capacity, 1)
        return httpx2.Response(201 if last == "runs" else 200, json=self.run | named | spent)

    def _decide(self, request: httpx2.Request) -> httpx2.Response:
        key, body = request.headers["Idempotency-Key"], json.loads(request.content)
        if key in self._by_key:
            known, first = self._by_key[key]
            assert known == request.content, "one key, two bodies"
            headers = {"Content-Type": first.headers["Content-Type"], "Idempotent-Replayed": "true"}
            return httpx2.Response(first.status_code, content=first.content, headers=headers)
        first_step, mode = self.next_step, body.get("mode")
        assert body["first_step"] == first_step
        items = body.get("events", [{"event": body.get("event", self.run["event"]), "count": body.get("count")}])
        events = [item["event"] for item in items for _ in range(item["count"])]
        dry_run = request.url.params.get("dry_run") == "true"
        loud = dry_run and events[0].get("event", {}).get("noise_multiplier", LEAST_NOISE) < LEAST_NOISE
        asked = {"run": self.run["id"], "first_step": first_step, "count": len(events), "dry_run": dry_run}
        if (loud or first_step + len(events) > self.capacity) and mode != "report":
            response = problem(403, "budget_exceeded", **(REFUSAL | asked))
        else:
            members = authorization(first_step, len(events), self.capacity) | asked
            members |= {"decision": "reported"} if mode == "report" else {}
            response = httpx2.Response(200, json=members)
            self.events.extend([] if dry_run else events)
        if not dry_run:
            self._by_key[key] = (request.content, response)
        return response


def authorization(first_step: int, count: int, capacity: int = 10) -> dict[str, object]:
    next_step = first_step + count
    said = {"decision": "admitted", "run": RUN_ID, "first_step": first_step, "count": count, "next_step": next_step}
    said |= {
        "epsilon": 0.25 * next_step,
        "used": next_step / max(capacity, 1),
        "steps_remaining": capacity - next_step,
        "dry_run": False,
    }
    return ACCOUNT | said | {"a_member_of_a_newer_ledger": {"x": 1}}


class FakeRun(Run):
    """A run of a ledger in memory, which answers at the first try or not at all."""

    def __init__(self, capacity: int = 1_000, **members: object) -> None:
        members = {"event": None, "population_size": N} | members
        self.ledger = FakeLedger(capacity=capacity, run=RUN | members)
        opened = LedgerClient(URL, KEY, max_attempts=1, transport=self.ledger).get_run(str(members.get("id", RUN_ID)))
        super().__init__(opened._transport, opened.state, PrefetchConfig(), step=0)
        self.ledger.requests.clear()
        self.asked = self.ledger.events

    def hear(self, **members: object) -> None:
        """Let the ledger say this of the run from now on."""
        self.ledger.run |= members
        self.refresh()


def open_budget(admin: LedgerClient, epsilon: float, relation: Any = "add_or_remove_one", **terms: Any) -> str:  # noqa: ANN401 - passed on
    """A budget of its own: its path."""
    name, limit = f"digits-{uuid.uuid4().hex[:8]}", Limit(100.0, 1e-5)
    admin.create_population(name, privacy_unit="record", neighboring_relation=relation, size=N, limit=limit)
    return admin.create_budget("team", parent=name, limit=Limit(epsilon, 1e-5), **terms).path
