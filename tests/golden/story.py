"""A hospital's year in requests: every operation, every way in which one is refused that trainers and officers meet."""

from typing import Any

from tests.conftest import SAMPLED
from tests.golden.recording import Recorder

LIMIT = {"epsilon": 3.0, "delta": 1e-5}
PEOPLE = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
QUIET = {"type": "gaussian", "noise_multiplier": 40.0}
WHY = "The board has met."
EVENTS: dict[str, dict[str, Any]] = {
    "gaussian": {"type": "gaussian", "noise_multiplier": 30.0},
    "discrete gaussian": {"type": "discrete_gaussian", "noise_multiplier": 30.0},
    "laplace": {"type": "laplace", "noise_multiplier": 50.0},
    "stated": {"type": "epsilon_delta", "epsilon": 0.01, "delta": 1e-9},
    "exponential": {"type": "exponential", "epsilon": 0.02},
    "sampled": SAMPLED,
    "fixed batch": {
        "type": "sampled_without_replacement",
        "source_dataset_size": 1000,
        "sample_size": 10,
        "event": QUIET,
    },
    "tree": {"type": "tree_aggregation", "noise_multiplier": 60.0, "step_counts": [7]},
    "repeated": {"type": "self_composed", "count": 3, "event": QUIET},
    "composed": {"type": "composed", "events": [QUIET, SAMPLED]},
    "group": {"type": "group_privacy", "group_size": 2, "event": QUIET},
    "decaying": {"type": "decay", "mode": "exp", "decay_rate": 0.01, "steps": 4, "event": QUIET},
    "answers": {"type": "randomized_response", "noise_parameter": 0.98, "num_buckets": 2},
}


def tell(story: Recorder) -> None:
    """Send every request of the story."""
    ids = _open(story)
    _train(story, ids)
    _set_aside(story, ids)
    _sweep(story, ids)
    _govern(story, ids)
    _plan(story)
    _alert(story, ids)
    _audit(story, ids)
    _go_wrong(story, ids)
    _look(story, ids)


def _open(story: Recorder) -> dict[str, str]:
    ask, ids = story.ask, {}
    ids["mimic"] = story.make("admin", "/v1/populations", PEOPLE | {"name": "mimic", "limit": LIMIT})
    parts = {"composition": "parallel", "attestation": "Each patient is treated at one site."}
    body = PEOPLE | parts | {"name": "sites", "limit": LIMIT}
    ids["sites"] = story.make("admin", "/v1/populations", body)
    ids["team"] = story.make("budget_admin", "/v1/budgets", {"name": "team", "parent": "mimic", "limit": LIMIT})
    for name in ("north", "south"):
        body = {"name": name, "parent": "sites", "limit": LIMIT | {"epsilon": 2.0}}
        ids[name] = story.make("budget_admin", "/v1/budgets", body)
    for path in ("/v1/populations", "/v1/budgets", "/v1/budgets?limit=1", "/v1/budgets?parent=mimic"):
        ask("viewer", "GET", path)
    ask("viewer", "GET", f"/v1/populations/{ids['mimic']}")
    ask("viewer", "GET", f"/v1/budgets/{ids['north']}")
    return ids


def _train(story: Recorder, ids: dict[str, str]) -> None:
    ask = story.ask
    run = ids["run"] = story.make("trainer", "/v1/runs", {"name": "model", "budget": "mimic/team", "event": SAMPLED})
    steps = f"/v1/runs/{run}/steps"
    ask("trainer", "POST", steps, {"first_step": 0, "count": 10}, Idempotency_Key="first")
    ask("trainer", "POST", steps, {"first_step": 0, "count": 10}, Idempotency_Key="first")
    ask("trainer", "POST", f"{steps}?dry_run=true", {"count": 100})
    for event in EVENTS.values():
        ask("trainer", "POST", steps, {"event": event})
    ask("trainer", "POST", steps, {"events": [{"event": QUIET, "count": 2}, {"event": SAMPLED}]})
    ask("trainer", "POST", steps, {"count": 10**7})
    ask("trainer", "POST", f"/v1/runs/{run}/attempts", {})
    for action in ("pause", "resume"):
        ask("trainer", "POST", f"/v1/runs/{run}/{action}", None)
    done = ids["done"] = story.make("trainer", "/v1/runs", {"name": "short", "budget": "sites/north", "event": QUIET})
    ask("trainer", "POST", f"/v1/runs/{done}/steps", {"count": 5})
    ask("trainer", "POST", f"/v1/runs/{done}/complete", {})
    lost = story.make("trainer", "/v1/runs", {"name": "lost", "budgets": ["mimic/team", "sites/south"]})
    ask("trainer", "POST", f"/v1/runs/{lost}/steps", {"event": QUIET})
    ask("trainer", "POST", f"/v1/runs/{lost}/abort", {"steps_executed": 1})
    for path in ("/v1/runs", f"/v1/runs/{run}", f"/v1/runs/{run}/history", f"/v1/runs/{done}", f"/v1/runs/{lost}"):
        ask("viewer", "GET", path)
    ask("viewer", "GET", f"/v1/accounts/{ids['mimic']}/history")


def _set_aside(story: Recorder, ids: dict[str, str]) -> None:
    ask = story.ask
    body = {"name": "planned", "budget": "sites/south", "event": QUIET}
    run = story.make("trainer", "/v1/runs", body)
    plan = {"plan": [{"event": QUIET, "count": 4}], "lease_seconds": 600}
    kept = story.make("trainer", f"/v1/runs/{run}/reservations", plan)
    ask("viewer", "GET", f"/v1/reservations/{kept}")
    ask("trainer", "POST", f"/v1/reservations/{kept}/renew", {"lease_seconds": 900})
    ask("viewer", "GET", f"/v1/budgets/{ids['south']}")
    follows = {"reservation": kept, "steps_executed": 2}
    after = story.make("trainer", f"/v1/runs/{run}/reservations", plan | {"preceding": follows})
    ask("trainer", "POST", f"/v1/reservations/{after}/commit", {"steps_executed": 3})
    ask("trainer", "POST", f"/v1/reservations/{after}/commit", {"steps_executed": 3})
    spare = story.make("trainer", f"/v1/runs/{run}/reservations", plan)
    ask("trainer", "POST", f"/v1/reservations/{spare}/void", {})
    ask("trainer", "POST", f"/v1/runs/{run}/reservations", {"plan": [{"event": QUIET, "count": 10**8}]})
    ask("viewer", "GET", f"/v1/runs/{run}")


def _sweep(story: Recorder, ids: dict[str, str]) -> None:
    ask = story.ask
    each = {
        "name": "sweep",
        "budget": "mimic/team",
        "charging_mode": "each_run",
        "limit": {"epsilon": 1.0, "delta": 1e-6},
    }
    ids["sweep"] = story.make("trainer", "/v1/experiments", each)
    trials = {"events": [{"event": {"type": "gaussian", "noise_multiplier": 90.0}}], "mean": 4.0, "shape": 1.0}
    best = {"name": "best", "budget": "mimic/team", "charging_mode": "repeat_and_select", "trials": trials}
    made = story.make("trainer", "/v1/experiments", best)
    ask("trainer", "POST", f"/v1/experiments/{made}/charge", None)
    ask("viewer", "GET", f"/v1/experiments/{made}")
    ask("viewer", "GET", "/v1/experiments")


def _govern(story: Recorder, ids: dict[str, str]) -> None:
    ask, limit = story.ask, f"/v1/accounts/{ids['team']}/limit"
    ask("viewer", "GET", limit)
    lower, higher = {"limit": LIMIT | {"epsilon": 2.9}}, {"limit": LIMIT | {"epsilon": 2.95}, "reason": WHY}
    ask("planner", "POST", limit, lower)
    ask("budget_admin", "POST", limit, lower | {"reason": WHY}, If_Match="*")
    proposed = story.make("planner", limit, higher, If_Match="*")
    ask("planner", "POST", f"/v1/proposals/{proposed}/approve", {})
    ask("privacy_officer", "POST", f"/v1/proposals/{proposed}/approve", {"reason": WHY})
    ask("privacy_officer", "POST", f"/v1/proposals/{proposed}/approve", {"reason": WHY})
    other = story.make("planner", limit, {"limit": LIMIT | {"epsilon": 3.5}, "reason": WHY}, If_Match="*")
    ask("privacy_officer", "POST", f"/v1/proposals/{other}/reject", {"reason": "Not yet."})
    for path in ("/v1/proposals", f"/v1/proposals/{proposed}", "/v1/proposals?status=rejected"):
        ask("viewer", "GET", path)
    policy = f"/v1/accounts/{ids['team']}/policy"
    rules = {
        "max_epsilon": 10.0,
        "max_delta": 0.01,
        "mechanisms": ["gaussian"],
        "require_limit": True,
        "min_noise_multiplier": 0.5,
        "approval_above_epsilon": 2.0,
        "approvers_to_raise_limit": 2,
    }
    ask("privacy_officer", "PUT", policy, {"policy": rules, "reason": WHY}, If_Match="*")
    looser = rules | {"max_epsilon": 11.0}
    ask("privacy_officer", "PUT", policy, {"policy": looser, "reason": WHY}, If_Match="*")
    ask("privacy_officer", "PUT", policy, {"policy": {"max_epsilon": 0}, "reason": WHY}, If_Match="*")
    ask("privacy_officer", "PUT", "/v1/policy", {"policy": {"max_delta": 0.25}, "reason": WHY}, If_Match="*")
    for path in ("/v1/policy", policy):
        ask("viewer", "GET", path)
    ask("trainer", "POST", f"/v1/runs/{ids['run']}/steps", {"event": EVENTS["laplace"], "attempt": 2})
    ask("trainer", "POST", "/v1/runs", {"name": "free", "budget": "mimic/team", "event": SAMPLED})
    limited = {"name": "large", "budget": "mimic/team", "event": SAMPLED, "limit": {"epsilon": 2.5, "delta": 1e-6}}
    ask("trainer", "POST", "/v1/runs", limited)
    made = story.make("admin", "/v1/api-keys", {"name": "ci", "role": "trainer", "scope": "mimic/team"})
    ask("admin", "POST", f"/v1/api-keys/{made}/rotate", {})
    ask("admin", "GET", f"/v1/api-keys/{made}")
    ask("admin", "POST", f"/v1/api-keys/{made}/revoke", {})
    ask("admin", "GET", "/v1/api-keys?limit=3")


def _plan(story: Recorder) -> None:
    events = [{"event": event, "count": 2} for event in EVENTS.values()]
    target: dict[str, Any] = {"event": SAMPLED, "count": 500} | LIMIT
    for path, body in {
        "epsilon": {"events": events, "delta": 1e-5},
        "delta": {"events": events, "epsilon": 1.0},
        "trajectory": {"events": [{"event": SAMPLED, "count": 100}], "delta": 1e-5},
        "noise-multiplier": target,
        "steps": {"event": SAMPLED} | LIMIT,
        "sampling-probability": target,
        "laplace": {"bound": 1e-5, "l1_sensitivity": 2},
    }.items():
        story.ask("viewer", "POST", f"/v1/accounting/{path}", body)


def _alert(story: Recorder, ids: dict[str, str]) -> None:
    ask, settings = story.ask, f"/v1/accounts/{ids['team']}/alert-settings"
    ask("privacy_officer", "PUT", settings, {"thresholds": [0.5, 0.9], "forecast_days": 14})
    ask("viewer", "GET", settings)
    ask("viewer", "GET", f"/v1/accounts/{ids['team']}/forecast")
    receiver = story.make("privacy_officer", "/v1/receivers", {"url": "https://alerts.example/privacy"})
    delivery = story.make("privacy_officer", f"/v1/receivers/{receiver}/test", None)
    ask("privacy_officer", "POST", f"/v1/receivers/{receiver}/rotate", {})
    ask("privacy_officer", "POST", f"/v1/receivers/{receiver}/disable", None)
    ask("privacy_officer", "POST", f"/v1/deliveries/{delivery}/retry", None)
    for path in (f"/v1/receivers/{receiver}", "/v1/receivers", "/v1/deliveries", "/v1/alerts"):
        ask("privacy_officer", "GET", path)


def _audit(story: Recorder, ids: dict[str, str]) -> None:
    ask = story.ask
    ask("auditor", "POST", "/v1/checkpoints", None)
    ask("auditor", "POST", "/v1/verifications", None)
    for path in (
        "/v1/checkpoints",
        "/v1/signing-key",
        "/v1/verifications",
        "/v1/audit-events?limit=200",
        "/v1/decisions?limit=200",
    ):
        ask("auditor", "GET", path)
    ask("auditor", "POST", f"/v1/accounts/{ids['team']}/quarantine/lift", {"reason": WHY})
    for path in (f"/v1/runs/{ids['run']}/statement", f"/v1/populations/{ids['mimic']}/statement"):
        ask("viewer", "GET", path)
        ask("viewer", "GET", f"{path}.html")


def _go_wrong(story: Recorder, ids: dict[str, str]) -> None:
    ask, steps = story.ask, f"/v1/runs/{ids['run']}/steps"
    for body in (
        {"first_step": 3, "attempt": 2},
        {"first_step": 300, "attempt": 2},
        {"count": 0},
        {"event": {"type": "gausian", "noise_multiplier": 1.0}},
        {"event": {"type": "gaussian", "noise_multiplier": -1.0}},
        {},
        {"event": {"type": "poisson_sampled", "sampling_probability": 2, "event": QUIET}},
        {"attempt": 7},
        {"unknown": 1},
    ):
        ask("trainer", "POST", steps, body)
    ask("viewer", "POST", steps, {})
    ask("trainer", "POST", steps, {"count": 3}, Idempotency_Key="first")
    ask("trainer", "POST", f"/v1/runs/{ids['done']}/steps", {})
    ask("viewer", "GET", "/v1/runs/run_nowhere")
    ask("viewer", "GET", "/v1/nowhere")
    ask("viewer", "DELETE", "/v1/runs")
    ask("viewer", "GET", "/v1/runs?limit=1000000")
    ask("viewer", "GET", "/v1/runs?after=nonsense")
    ask("admin", "POST", "/v1/populations", PEOPLE | {"name": "Mimic", "limit": LIMIT})
    ask("admin", "POST", "/v1/populations", PEOPLE | {"name": "other", "limit": {"epsilon": -1}})
    ask("admin", "POST", "/v1/budgets", {"name": "team", "parent": "nowhere", "limit": LIMIT})
    ask("viewer", "POST", "/v1/accounting/noise-multiplier", {"event": QUIET, "count": 1, "epsilon": 0.0, "delta": 0.0})

    some = {"count": 10**7, "on_exceed": "truncate", "event": EVENTS["gaussian"], "attempt": 2}
    ask("trainer", "POST", steps, some, Idempotency_Key="the rest")


def _look(story: Recorder, ids: dict[str, str]) -> None:
    for page in (
        *("/", f"/accounts/{ids['mimic']}", f"/accounts/{ids['team']}", f"/accounts/{ids['sites']}"),
        *(f"/runs/{ids['run']}", f"/runs/{ids['done']}", "/planner", "/decisions", "/audit", "/approvals", "/policies"),
        "/experiments",
        *(
            "/policies?account=mimic/team",
            "/keys",
            "/alerts",
            "/docs",
            "/sign-in",
            "/nowhere",
            "/decisions?account=x",
        ),
    ):
        story.look("admin", page)
    story.look("viewer", "/keys")
