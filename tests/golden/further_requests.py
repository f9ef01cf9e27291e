"""Requests after the story's, so that each schema of the API has an example."""

from collections.abc import Callable
from typing import Any

from tests.conftest import SAMPLED

Ask = Callable[..., Any]
"""Send a request without a snapshot: its name (None), a role, the request, and a body."""

LIMIT = {"epsilon": 3.0, "delta": 1e-5}
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 40.0}
PEOPLE = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
WHY = "The ethics board has met."
METADATA = {
    "display_name": "ICU team, 2026",
    "description": "Models that predict a stay in intensive care.",
    "owner": "icu-team@hospital.example",
    "labels": {"study": "sepsis"},
    "links": [{"title": "Protocol", "url": "https://hospital.example/protocols/17"}],
    "deployment": {"intended_use": "Beds are planned by expected stays."},
}


def send_the_rest(ask: Ask) -> None:
    """Send every request that the story lacks."""
    icu, team = _register(ask)
    _train(ask)
    _schedule(ask, icu)
    _govern(ask, team)
    _notify(ask)
    _plan(ask)
    for path in ("healthz", "readyz", "v1/signing-key"):
        ask(None, "viewer", f"GET /{path}")


def _register(ask: Ask) -> tuple[str, str]:
    population = {"name": "eicu", "limit": LIMIT, "size": 46520, "composition": "parallel"}
    attested = {"attestation": "Each patient is in one hospital.", "max_partitions_per_unit": 1}
    wards = ask(None, "admin", "POST /v1/populations", PEOPLE | population | attested)["id"]
    named = {"name": "icu", "limit": LIMIT, "size": 46520, "planned": [{"event": SAMPLED, "count": 900}]}
    icu: str = ask(None, "admin", "POST /v1/populations", PEOPLE | METADATA | named)["id"]
    budget = {"name": "team", "parent": "icu", "limit": LIMIT, "planned": [{"event": SAMPLED, "count": 500}]}
    team: str = ask(None, "budget_admin", "POST /v1/budgets", METADATA | budget)["id"]
    blocks = {"period": "month", "start": "2026-01-01", "count": 2, "limit": LIMIT, "prefix": "visits-"}
    ask(None, "budget_admin", f"POST /v1/accounts/{wards}/blocks", blocks)
    monthly = {"period": "month", "start": "2026-03-01", "limit": LIMIT, "prefix": "visits-"}
    schedule = {"schedule": monthly, "reason": "Each month of visits has a budget of its own."}
    ask(None, "budget_admin", f"PUT /v1/accounts/{wards}/block-schedule", schedule, If_Match="*")
    ask(None, "budget_admin", f"PATCH /v1/budgets/{team}", METADATA)
    old = ask(None, "budget_admin", "POST /v1/budgets", {"name": "old", "parent": "icu", "limit": LIMIT})["id"]
    ask(None, "budget_admin", f"POST /v1/accounts/{old}/archive", {"reason": "The study has ended."})
    for path in ("populations", "budgets"):
        ask(None, "viewer", f"GET /v1/{path}")
    return icu, team


def _train(ask: Ask) -> None:
    body = {"name": "resnet", "budget": "icu/team", "event": SAMPLED, "expected_steps": 500}
    body |= {"declared_steps_per_hour": 3600.0, "starts_from": [{"name": "resnet-18", "sha256": "5a" * 32}]}
    run = ask(None, "trainer", "POST /v1/runs", METADATA | body)["id"]
    ask(None, "trainer", f"POST /v1/runs/{run}/steps", {"event": SAMPLED, "count": 10, "first_step": 0, "attempt": 1})
    plan = {"events": [{"event": SAMPLED, "count": 100}], "lease_seconds": 600, "attempt": 1}
    held = ask(None, "trainer", f"POST /v1/runs/{run}/reservations", plan)["id"]
    following = plan | {"preceding": {"reservation": held, "steps_executed": 40}}
    ask(None, "trainer", f"POST /v1/runs/{run}/reservations", following)
    asked = {"account": "icu/team", "limit": LIMIT | {"epsilon": 4.0}, "reason": "Forty more epochs."}
    proposal = ask(None, "trainer", f"POST /v1/runs/{run}/limit-requests", asked)["id"]
    ask(None, "privacy_officer", f"POST /v1/proposals/{proposal}/reject", {"reason": "The cohort is too small."})
    ask(None, "trainer", f"POST /v1/runs/{run}/attempts", {"first_step": 20, "steps_executed": 30})
    ask(None, "trainer", f"POST /v1/runs/{run}/pause")
    ask(None, "trainer", f"POST /v1/runs/{run}/resume")
    ask(None, "trainer", f"POST /v1/runs/{run}/reservations", plan | {"attempt": 2})
    ask(None, "trainer", f"POST /v1/runs/{run}/complete", {"steps_executed": 100, "attempt": 2})
    ask(None, "viewer", f"GET /v1/runs/{run}/statement")
    ask(None, "viewer", f"GET /v1/runs/{run}/registry-entry")
    tuning = {"name": "learning-rate", "budget": "icu/team", "charging_mode": "each_run"}
    experiment = ask(None, "trainer", "POST /v1/experiments", METADATA | tuning)["id"]
    ask(None, "viewer", f"GET /v1/experiments/{experiment}")


def _schedule(ask: Ask, icu: str) -> None:
    large = {"events": [{"event": GAUSSIAN, "count": 400}], "lease_seconds": 600}
    runs = [
        ask(None, "trainer", "POST /v1/runs", {"name": name, "budget": "icu/team", "event": GAUSSIAN})["id"]
        for name in ("large", "larger")
    ]
    ask(None, "trainer", f"POST /v1/runs/{runs[0]}/reservations", large)
    waits = large | {"wait_until": "2026-02-01T00:00:00Z"}
    waiting = ask(None, "trainer", f"POST /v1/runs/{runs[1]}/reservations", waits)["id"]
    shares = {
        "rule": "most_packed",
        "aging_seconds": 86_400,
        "unlock": {"type": "over_time", "over_seconds": 2_419_200, "parts": 4},
        "shares": [{"account": "icu/team", "minimum": 0.25, "maximum": 0.75}],
    }
    ask(None, "budget_admin", f"PUT /v1/accounts/{icu}/allocation", {"allocation": shares, "reason": WHY}, If_Match="*")
    ask(None, "viewer", f"GET /v1/accounts/{icu}/queue")
    ask(None, "viewer", f"POST /v1/accounts/{icu}/queue/what-if", {"events": large["events"]})
    first = {"priority": 1, "reason": "The deadline is on Friday."}
    ask(None, "budget_admin", f"POST /v1/reservations/{waiting}/prioritize", first)
    ask(None, "trainer", f"POST /v1/reservations/{waiting}/cancel", {"reason": "It is trained elsewhere."})


def _govern(ask: Ask, team: str) -> None:
    rules = {"max_epsilon": 10.0, "mechanisms": ["gaussian", "laplace"], "approval_above_epsilon": 2.0}
    ask(None, "privacy_officer", "PUT /v1/policy", {"policy": rules, "reason": WHY}, If_Match="*")
    ask(None, "viewer", f"GET /v1/accounts/{team}/equivalents")
    limit = {"limit": LIMIT | {"epsilon": 2.9}, "reason": WHY}
    ask(None, "budget_admin", f"POST /v1/accounts/{team}/limit", limit, If_Match="*")
    key = {"name": "nightly-job", "role": "trainer", "scope": "icu/team", "expires_at": "2026-03-01T00:00:00Z"}
    made = ask(None, "admin", "POST /v1/api-keys", key)["id"]
    ask(None, "admin", f"POST /v1/api-keys/{made}/rotate", {"overlap_seconds": 3600})
    ask(None, "admin", f"POST /v1/api-keys/{made}/revoke", {"reason": "It was in a log."})


def _notify(ask: Ask) -> None:
    receiver = {"url": "https://alerts.example/privacy", "types": ["proposal.opened"], "account": "icu/team"}
    made = ask(None, "privacy_officer", "POST /v1/receivers", receiver)["id"]
    ask(None, "privacy_officer", f"GET /v1/receivers/{made}")
    ask(None, "privacy_officer", f"POST /v1/receivers/{made}/rotate", {"overlap_seconds": 86_400})
    for path in ("alerts", "decisions", "proposals", "deliveries", "verifications", "checkpoints", "api-keys"):
        ask(None, "admin", f"GET /v1/{path}")


def _plan(ask: Ask) -> None:
    plan = {"events": [{"event": SAMPLED, "count": 500}], "neighboring_relation": "add_or_remove_one"}
    ask(None, "viewer", "POST /v1/accounting/epsilon", plan | {"delta": 1e-5})
    ask(None, "viewer", "POST /v1/accounting/delta", plan | {"epsilon": 1.0})
    ask(None, "viewer", "POST /v1/accounting/trajectory", plan | {"delta": 1e-5})
    sampled = {"event": SAMPLED, "count": 500} | LIMIT
    ask(None, "viewer", "POST /v1/accounting/sampling-probability", sampled)
    laplace = {"bound": 10.0, "probability": 0.9, "l1_sensitivity": 2, "releases": 100, "delta": 1e-5}
    ask(None, "viewer", "POST /v1/accounting/laplace", laplace)
