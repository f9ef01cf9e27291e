"""However a request writes what it means, the audit log and the rows say the same: nothing sound is called tampered."""

from itertools import permutations

from app.service.verification.verify import verify
from tests.conftest import Ledger
from tests.ledgers import SAMPLED

LIMIT = {"epsilon": 2, "delta": 1e-5}
LOUD = {"type": "gaussian", "noise_multiplier": 60}


def test_orders_zones_and_integers_are_recorded_as_they_are_stored(ledger: Ledger) -> None:
    planned = [{"event": SAMPLED, "count": 3}, {"event": LOUD, "count": 1}, {"event": SAMPLED, "count": 2}]
    ledger.population("mimic", limit=LIMIT, planned=planned, size=1000)
    ledger.population("sites", limit=LIMIT, composition="parallel", attestation="  by site \u00e9 e\u0301 ")
    block = {"data_from": "2026-05-01T02:00:00.1234567+02:00", "data_to": "2026-05-31T22:00:00-02:00", "label": "Mai"}
    ledger.budget("may", "sites", limit=LIMIT, block=block, closes_at="2099-01-01T00:00:00.5+05:30")
    team = ledger.budget("team", "mimic", limit=LIMIT, opens_at="2026-01-01T23:59:59.999999-11:00")["id"]
    ledger.budget("inner", "mimic", limit=LIMIT)
    ledger.budget("deep", "mimic/inner", limit=LIMIT)
    # The first is the one that a run lies under; the rows keep the others by depth and id.
    for number, budgets in enumerate(permutations(("mimic/team", "sites/may", "mimic/inner/deep"))):
        model = {"name": f"model-{number}", "budgets": budgets, "event": LOUD}
        assert ledger.post("/v1/runs", model).status_code == 201
    policy: dict[str, object] = {"neighboring_relations": ["replace_one", "add_or_remove_one"], "max_epsilon": 9}
    policy |= {"mechanisms": ["laplace", "gaussian"], "report_roles": ["trainer", "admin"], "approval_above_epsilon": 8}
    headers = ledger.headers() | {"If-Match": "*"}
    settings: list[tuple[str, dict[str, object]]] = [
        ("policy", {"policy": policy, "reason": "House rules."}),
        (f"accounts/{team}/policy", {"policy": policy, "reason": "House rules."}),
        (f"accounts/{team}/alert-settings", {"thresholds": [0.25, 1], "forecast_days": 3}),
    ]
    for path, setting in settings:
        assert ledger.http.put(f"/v1/{path}", json=setting, headers=headers).status_code == 200
    run = ledger.run("mimic/team", event=LOUD)
    plan = [{"event": LOUD, "count": 2}, {"event": SAMPLED, "count": 1}, {"event": LOUD, "count": 1}]
    made: list[tuple[str, dict[str, object]]] = [
        (f"runs/{run}/reservations", {"events": plan}),
        ("api-keys", {"role": "trainer", "name": "\u00e9", "expires_at": "2099-01-01T00:00:00.25+02:00"}),
        ("receivers", {"url": "https://a.example/", "types": ["run.overdrawn", "account.exhausted", "run.overdrawn"]}),
    ]
    for path, body in made:
        assert ledger.post(f"/v1/{path}", body).status_code == 201
    assert verify(ledger.database).problems == ()
