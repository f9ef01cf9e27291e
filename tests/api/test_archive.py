"""An archived account is hidden and read-only, and frees nothing."""

import pytest

from tests.api.conftest import SeededLedger


def _ended(seeded: SeededLedger) -> None:
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None).status_code == 200


def _unarchive(seeded: SeededLedger, account: str) -> None:
    """Unarchive an account, by two persons."""
    proposed = seeded.ledger.post(f"/v1/accounts/{account}/unarchive", {"reason": "It is needed."})
    assert (proposed.status_code, proposed.json()["kind"]) == (202, "unarchival"), proposed.text
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    assert seeded.ledger.post(approval, {"reason": "Agreed."}).status_code == 403, "the proposer"
    assert seeded.ledger.post(approval, {"reason": "Agreed."}, "privacy_officer").status_code == 200


def _listed(seeded: SeededLedger, kind: str, query: str = "") -> set[str]:
    return {item["id"] for item in seeded.ledger.get(f"/v1/{kind}?limit=200{query}").json()["items"]}


@pytest.mark.parametrize("kind", ["population", "budget", "run"])
def test_what_is_under_an_archived_account_is_hidden_until_it_is_unarchived(seeded: SeededLedger, kind: str) -> None:
    _ended(seeded)
    account = {"population": seeded.population, "budget": seeded.budget, "run": seeded.run}[kind]
    before = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    archived = seeded.ledger.post(f"/v1/accounts/{account}/archive", {"reason": "The study is over."})
    assert archived.status_code == 200, archived.text
    hidden = {"population": 3, "budget": 2, "run": 1}[kind]
    for place, (name, one) in enumerate(
        (("runs", seeded.run), ("budgets", seeded.budget), ("populations", seeded.population))
    ):
        assert (one in _listed(seeded, name)) == (place >= hidden), name
        assert (one in _listed(seeded, name, "&archived=true")) == (place < hidden), name
    after = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    assert after["epsilon"] == before["epsilon"] > 0
    [event] = seeded.ledger.get(f"/v1/audit-events?action={kind}.archived", "auditor").json()["items"]
    assert (event["subject"], event["reason"]) == (account, "The study is over.")
    assert seeded.ledger.post("/v1/verifications", None).json()["discrepancies"] == []
    rows = seeded.rows()
    again = seeded.ledger.post(f"/v1/accounts/{account}/archive", None)
    assert (again.status_code, again.json()) == (200, archived.json())
    changed = {name for name, value in seeded.rows().items() if value != rows[name]}
    assert not changed & {"account_metadata", "audit_entries"}
    if kind != "run":
        _unarchive(seeded, account)
    back = seeded.ledger.post(f"/v1/accounts/{account}/unarchive", None)
    assert (back.status_code, back.json()) == (200, archived.json() | {"archived_at": None})
    assert seeded.run in _listed(seeded, "runs")
    assert seeded.ledger.post("/v1/verifications", None).json()["discrepancies"] == []


@pytest.mark.parametrize("state", ["active", "paused"])
def test_what_may_still_take_steps_is_not_archived(seeded: SeededLedger, state: str) -> None:
    if state == "paused":
        assert seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None).status_code == 200
    for account in (seeded.run, seeded.budget, seeded.population):
        refused = seeded.ledger.post(f"/v1/accounts/{account}/archive", None)
        assert (refused.status_code, refused.json()["code"]) == (409, "account_state_conflict"), refused.text
        assert seeded.run in refused.json()["detail"]


def test_nothing_is_created_under_an_archived_account(seeded: SeededLedger) -> None:
    _ended(seeded)
    limit = {"epsilon": 1.0, "delta": 1e-5}
    apart = {"composition": "parallel", "attestation": "Each record is of one month."}
    blocks = seeded.ledger.budget("logs", "mimic", limit=limit, **apart)["id"]
    assert seeded.ledger.post(f"/v1/accounts/{seeded.population}/archive", None).status_code == 200
    for path, body in (
        ("/v1/runs", {"name": "late", "budget": "mimic/icu-team"}),
        ("/v1/budgets", {"name": "late", "parent": "mimic", "limit": limit}),
        ("/v1/experiments", {"name": "late", "budget": "mimic/icu-team", "charging_mode": "each_run"}),
        (f"/v1/accounts/{blocks}/blocks", {"period": "month", "start": "2026-01-01", "count": 2, "limit": limit}),
    ):
        refused = seeded.ledger.post(path, body)
        assert (refused.status_code, refused.json()["code"]) == (409, "account_archived"), refused.text
        assert refused.json()["archived"] == "mimic"
    _unarchive(seeded, seeded.population)
    assert seeded.ledger.run(name="late")


def test_the_limit_of_an_archived_account_is_not_raised(seeded: SeededLedger) -> None:
    _ended(seeded)
    path = f"/v1/accounts/{seeded.population}/limit"
    now = seeded.ledger.get(path).json()["limit"]
    raised, lowered = (
        {"limit": now | {"epsilon": factor * now["epsilon"]}, "reason": "As agreed."} for factor in (2.0, 0.9)
    )
    [proposal] = seeded.ledger.get("/v1/proposals?status=open").json()["items"]
    assert (proposal["kind"], proposal["account"]) == ("limit", seeded.population)
    assert seeded.ledger.post(f"/v1/accounts/{seeded.population}/archive", None).status_code == 200
    approval = seeded.ledger.post(f"/v1/proposals/{proposal['id']}/approve", {"reason": "Agreed."})
    seeded.ledger.post(f"/v1/proposals/{proposal['id']}/reject", {"reason": "It is archived."})
    for refused in (approval, seeded.ledger.post(path, raised, If_Match="*")):
        assert (refused.status_code, refused.json()["code"]) == (409, "account_archived"), refused.text
    assert seeded.ledger.get(path).json()["limit"] == now
    assert seeded.ledger.post(path, lowered, If_Match="*").status_code == 200


def test_an_archived_run_takes_no_steps(seeded: SeededLedger) -> None:
    _ended(seeded)
    assert seeded.ledger.post(f"/v1/accounts/{seeded.run}/archive", None).status_code == 200
    for what, body in (("steps", {"first_step": 1}), ("attempts", {}), ("resume", None)):
        assert seeded.ledger.post(f"/v1/runs/{seeded.run}/{what}", body).status_code == 409, what


def test_an_account_is_unarchived_by_two_persons(seeded: SeededLedger) -> None:
    _ended(seeded)
    assert seeded.ledger.post(f"/v1/accounts/{seeded.budget}/archive", None).status_code == 200
    unarchive = f"/v1/accounts/{seeded.budget}/unarchive"
    first = seeded.ledger.post(unarchive, {"reason": "It is needed."}, "budget_admin")
    assert first.status_code == 202
    assert seeded.ledger.post(unarchive, {"reason": "It is needed."}, "budget_admin").json() == first.json()
    other = seeded.ledger.post(unarchive, {"reason": "By me."}, "admin")
    assert (other.status_code, other.json()["code"]) == (422, "invalid_request")
    late = {"name": "late", "budget": "mimic/icu-team"}
    assert seeded.ledger.post("/v1/runs", late).json()["code"] == "account_archived"
    assert seeded.ledger.post(f"/v1/proposals/{first.json()['id']}/approve", None, "admin").status_code == 200
    assert seeded.ledger.post("/v1/runs", late).status_code == 201
    events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={seeded.budget}", "auditor").json()["items"]
    assert (events[-1]["action"], events[-1]["reason"]) == ("budget.unarchived", "It is needed.")
    assert seeded.ledger.post("/v1/verifications", None).json()["sound"]


def test_one_person_unarchives_where_one_raises_limits(seeded: SeededLedger) -> None:
    _ended(seeded)
    policy = {"policy": {"approvers_to_raise_limit": 1}, "reason": "We are few."}
    headers = seeded.ledger.headers() | {"If-Match": "*"}
    proposal = seeded.ledger.http.put("/v1/policy", json=policy, headers=headers).json()["id"]
    assert seeded.ledger.post(f"/v1/proposals/{proposal}/approve", None, "privacy_officer").is_success
    for role, status in (("admin", 200), ("privacy_officer", 200), ("budget_admin", 202)):
        seeded.ledger.post(f"/v1/accounts/{seeded.budget}/archive", None)
        reply = seeded.ledger.post(f"/v1/accounts/{seeded.budget}/unarchive", None, role)
        assert reply.status_code == status, reply.text
