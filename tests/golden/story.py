"""A hospital's first weeks in requests: one of each kind of answer that trainers, officers and auditors get."""

from tests.conftest import SAMPLED
from tests.golden.recording import Recorder

LIMIT = {"epsilon": 3.0, "delta": 1e-5}
PEOPLE = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
QUIET = {"type": "gaussian", "noise_multiplier": 40.0}
WHY = "The board has met."


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
    plan = {"plan": [{"event": QUIET, "count": 4}], "lease_seconds": 600}
    kept = story.make("reservation", "trainer", f"POST /v1/runs/{run}/reservations", plan)
    story.ask("committed", "trainer", f"POST /v1/reservations/{kept}/commit", {"steps_executed": 3})
    story.ask("completed", "trainer", f"POST /v1/runs/{run}/complete", {})
    large = {"budget": "mimic/other", "event": QUIET, "plan": [{"event": QUIET, "count": 400}]}
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
