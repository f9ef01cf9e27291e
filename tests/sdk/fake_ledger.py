"""A ledger in memory that answers like the real one, and a network that fails on demand."""

import json
from collections import deque
from dataclasses import dataclass, field

import httpx2

KEY = "key_test.s3cr3t-part"
URL = "http://ledger.test"
RUN_ID = "run_1"
# What a client tries by default.
TRIES = 12
PROBLEM_JSON = "application/problem+json"

RUN = {
    "id": RUN_ID,
    "name": "icu",
    "budget": "bud_1",
    "budget_path": "mimic/icu-team",
    "population": "pop_1",
    "status": "active",
    "attempt": 1,
    "next_step": 0,
    "event": {"type": "gaussian", "noise_multiplier": 2.0},
    "epsilon": 0,
    "epsilon_rdp": 0.0,
    "delta": 1e-5,
    "epsilon_limit": 3.0,
    "steps_remaining": 10,
    "binding_account": "bud_1",
    "binding_account_path": "mimic/icu-team",
    "privacy_unit": "record",
    "neighboring_relation": "add_or_remove_one",
    "labels": {},
    "links": [],
    "created_at": "2026-11-21T08:00:00Z",
    "updated_at": "2026-11-21T08:00:00.123456Z",
}
RDP = {"order": 8.5, "spent": 1.5, "held": 0.0, "requested": 0.25, "limit": 1.6}
REFUSAL = {
    "decision": "refused",
    "run": RUN_ID,
    "first_step": 10,
    "count": 4,
    "binding_account": "bud_1",
    "binding_account_path": "mimic/icu-team",
    "epsilon": 2.9,
    "epsilon_requested": 3.2,
    "epsilon_limit": 3.0,
    "delta": 1e-5,
    "rdp": RDP,
    "delta_requested": 0.0,
    "delta_left": 1e-7,
    "plan": None,
    "max_count_that_fits": 1,
    "steps_needed": 4,
    "exhausted": False,
    "alternatives": [
        {"type": "same_noise", "steps": 1},
        {"type": "more_noise", "steps": 4, "noise_multiplier": 3.75},
        {
            "type": "higher_limit",
            "steps": 4,
            "limits": [{"account": "bud_1", "account_path": "mimic/icu-team", "epsilon": 3.25, "delta": 1e-5}],
        },
    ],
    "unavailable_alternatives": [],
    "url": "https://ledger.example.org/runs/run_1",
    "dry_run": False,
}


def problem(status: int, code: str, headers: dict[str, str] | None = None, /, **members: object) -> httpx2.Response:
    named = {"type": f"urn:problem-type:epsilon-ledger:{code}", "title": "A title", "status": status, "code": code}
    content = json.dumps(named | {"detail": "Why.", "request_id": "req_1"} | members)
    return httpx2.Response(status, content=content.encode(), headers={"Content-Type": PROBLEM_JSON} | (headers or {}))


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls one try: an answer or an error instead of the ledger's, or after it."""

    instead: httpx2.Response | BaseException | None = None
    after: httpx2.Response | BaseException | None = None


@dataclass
class FakeLedger:
    """Admits `capacity` steps, and answers a request again under its key."""

    capacity: int = 10
    status: str = "active"
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[httpx2.Request] = field(default_factory=list)
    next_step: int = 0
    _by_key: dict[str, tuple[bytes, httpx2.Response]] = field(default_factory=dict)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        fault = self.faults.popleft() if self.faults else Fault()
        answer = fault.instead or self._answer(request)
        answer = fault.after or answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def answers(self, *answers: httpx2.Response | BaseException) -> None:
        """Let the next requests be answered so, instead of by the ledger."""
        self.faults.extend(Fault(instead=answer) for answer in answers)

    @property
    def keys(self) -> list[str]:
        return [request.headers["Idempotency-Key"] for request in self.requests]

    @property
    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(request.content) for request in self.requests]

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        last = request.url.path.rsplit("/", 1)[-1]
        if last == "steps":
            return self._decide(request)
        reached = {"complete": "completed", "abort": "aborted", "pause": "paused", "resume": "active"}
        if last in reached:
            if self.status in {"completed", "aborted"} and self.status != reached[last]:
                return problem(409, "run_state_conflict", run_status=self.status)
            self.status = reached[last]
        state = RUN | {"status": self.status, "next_step": self.next_step}
        return httpx2.Response(201 if last == "runs" else 200, json=state)

    def _decide(self, request: httpx2.Request) -> httpx2.Response:
        key, body = request.headers["Idempotency-Key"], json.loads(request.content)
        if key in self._by_key:
            known, first = self._by_key[key]
            assert known == request.content, "one key, two bodies"
            headers = {"Content-Type": first.headers["Content-Type"], "Idempotent-Replayed": "true"}
            return httpx2.Response(first.status_code, content=first.content, headers=headers)
        assert body["first_step"] == self.next_step
        count = sum(item["count"] for item in body["events"]) if "events" in body else body["count"]
        dry_run = request.url.params.get("dry_run") == "true"
        if self.next_step + count > self.capacity:
            refusal = REFUSAL | {"first_step": self.next_step, "count": count, "dry_run": dry_run}
            response = problem(403, "budget_exceeded", **refusal)
        else:
            members = authorization(self.next_step, count, self.capacity)
            response = httpx2.Response(200, json=members | {"dry_run": dry_run})
            self.next_step += 0 if dry_run else count
        if not dry_run:
            self._by_key[key] = (request.content, response)
        return response


def authorization(first_step: int, count: int, capacity: int = 10) -> dict[str, object]:
    return {
        "decision": "admitted",
        "run": RUN_ID,
        "first_step": first_step,
        "count": count,
        "next_step": first_step + count,
        "epsilon": 0.25 * (first_step + count),
        "delta": 1e-5,
        "epsilon_limit": 3.0,
        "steps_remaining": capacity - first_step - count,
        "binding_account": "bud_1",
        "binding_account_path": "mimic/icu-team",
        "dry_run": False,
        "a_member_of_a_newer_ledger": {"x": 1},
    }
