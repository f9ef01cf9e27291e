"""However a request writes what it means, the audit log and the rows say the same: nothing sound is called tampered."""

from itertools import permutations

from app.service.verification import verify
from tests.conftest import Ledger
from tests.ledgers import SAMPLED

LIMIT = {"epsilon": 2, "delta": 1e-5}
LOUD = {"type": "gaussian", "noise_multiplier": 60}


def test_run_with_budgets_in_any_order_is_sound(ledger: Ledger) -> None:
    """The first is the one that it lies under; the rows keep the others by depth and id."""
    paths = []
    for place, parent in enumerate(("mimic", "eicu", "mimic/inner", "hirid")):
        if "/" in parent:
            ledger.budget("inner", "mimic", limit=LIMIT)
        else:
            ledger.population(parent, limit=LIMIT)
        ledger.budget(f"team-{place}", parent, limit=LIMIT)
        paths.append(f"{parent}/team-{place}")
    for number, budgets in enumerate(permutations(paths)):
        body = {"name": f"model-{number}", "budgets": budgets, "event": LOUD}
        assert ledger.post("/v1/runs", body).status_code == 201
    assert verify(ledger.database).problems == ()


def test_orders_zones_and_integers_are_recorded_as_they_are_stored(ledger: Ledger) -> None:
    planned = [{"event": SAMPLED, "count": 3}, {"event": LOUD, "count": 1}, {"event": SAMPLED, "count": 2}]
    ledger.population("mimic", limit=LIMIT, planned=planned, size=1000)
    ledger.population("sites", limit=LIMIT, composition="parallel", attestation="  by site \u00e9 e\u0301 ")
    block = {"data_from": "2026-05-01T02:00:00.1234567+02:00", "data_to": "2026-05-31T22:00:00-02:00", "label": "Mai"}
    ledger.budget("may", "sites", limit=LIMIT, block=block, closes_at="2099-01-01T00:00:00.5+05:30")
    ledger.budget("team", "mimic", limit=LIMIT, opens_at="2026-01-01T23:59:59.999999-11:00")
    policy = {
        "mechanisms": ["laplace", "gaussian"],
        "neighboring_relations": ["replace_one", "add_or_remove_one"],
        "report_roles": ["trainer", "admin"],
        "max_epsilon": 9,
        "approval_above_epsilon": 8,
    }
    team = ledger.get("/v1/budgets?path=mimic/team").json()["items"][0]["id"]
    for path in ("/v1/policy", f"/v1/accounts/{team}/policy"):
        body, headers = {"policy": policy, "reason": "House rules."}, ledger.headers() | {"If-Match": "*"}
        assert ledger.http.put(path, json=body, headers=headers).status_code == 200
    alerts = {"thresholds": [0.25, 1], "forecast_days": 3}
    assert (
        ledger.http.put(f"/v1/accounts/{team}/alert-settings", json=alerts, headers=ledger.headers()).status_code == 200
    )
    run = ledger.run("mimic/team", event=LOUD)
    plan = {"plan": [{"event": LOUD, "count": 2}, {"event": SAMPLED, "count": 1}, {"event": LOUD, "count": 1}]}
    assert ledger.post(f"/v1/runs/{run}/reservations", plan).status_code == 201
    key = {"role": "trainer", "name": "\u00e9", "expires_at": "2099-01-01T00:00:00.25+02:00"}
    assert ledger.post("/v1/api-keys", key).status_code == 201
    hook = {"url": "https://alerts.example/", "types": ["run.overdrawn", "account.exhausted", "run.overdrawn"]}
    assert ledger.post("/v1/receivers", hook).status_code == 201
    assert verify(ledger.database).problems == ()
