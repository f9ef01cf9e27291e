"""A hospital group governs its budgets: a story over HTTP with the keys of six, and an auditor who believes nobody."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.service.ed25519 import is_signed_by
from tests.conftest import SAMPLED, LiveServer, command_line, signing_key
from tests.docs.markdown import ROOT

SCRIPT = ROOT / "examples" / "verify_export.py"
PEOPLE = {
    "colleague": {"role": "privacy_officer"},
    "planner": {"role": "planner"},
    "imaging": {"role": "budget_admin", "scope": "patients/north/imaging"},
    "auditor": {"role": "auditor"},
}
NOISE = {"type": "gaussian", "noise_multiplier": 50.0}
TRIALS = {"events": [{"event": {"type": "gaussian", "noise_multiplier": 60.0}}], "mean": 8.0, "shape": 1.0}


class Group:
    """The service, and a client for each person."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.keys = {"admin": server.key("admin", "group")}

    def ask(self, who: str, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
        sent = {"Authorization": f"Bearer {self.keys[who]}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        reply: httpx2.Response = httpx2.request(
            method, self.server.url + path, json=body, headers=sent, timeout=60, trust_env=False
        )
        return reply

    def made(self, who: str, path: str, body: object, **headers: str) -> dict[str, Any]:
        reply = self.ask(who, "POST", path, body, **headers)
        assert reply.status_code in {200, 201}, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def read(self, who: str, path: str) -> dict[str, Any]:
        reply = self.ask(who, "GET", path)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPSILON_LEDGER_SIGNING_KEY_FILE", str(signing_key()[0]))
        server = LiveServer(tmp_path_factory.mktemp("group"))
        server.start()
        yield Group(server)
        server.stop()


def _build(group: Group) -> dict[str, str]:
    """Two populations; the first has two sites that share no patient, and a team at each; the second has one team."""
    people = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    limit = {"epsilon": 4.0, "delta": 1e-5}
    ids = {}
    parts = {
        "composition": "parallel",
        "attestation": "Each patient is treated at one site; fixed before any training.",
    }
    ids["patients"] = group.made("admin", "/v1/populations", people | parts | {"name": "patients", "limit": limit})[
        "id"
    ]
    ids["donors"] = group.made("admin", "/v1/populations", people | {"name": "donors", "limit": limit})["id"]
    for parent, name in (
        *(("patients", "north"), ("patients", "south")),
        *(("patients/north", "imaging"), ("patients/south", "cardio"), ("donors", "blood")),
    ):
        body = {"name": name, "parent": parent, "limit": limit | {"epsilon": 2.0 if "/" in parent else 3.0}}
        ids[name] = group.made("admin", "/v1/budgets", body)["id"]
    for person, terms in PEOPLE.items():
        group.keys[person] = group.made("admin", "/v1/api-keys", {"name": person, **terms})["key"]
    group.keys["officer"] = group.server.key("privacy_officer", "group")  # whoever issues keys knows them
    return ids


def _raise_a_limit(group: Group, ids: dict[str, str]) -> None:
    """The team wants more, the planner proposes it, an officer approves; nobody does it alone."""
    path = f"/v1/accounts/{ids['imaging']}/limit"
    more = {"limit": {"epsilon": 2.5, "delta": 1e-5}, "reason": "The board has approved another year."}
    assert group.ask("planner", "POST", path, more).status_code == 428
    tag = group.ask("planner", "GET", path).headers["etag"]
    proposed = group.made("planner", path, more, If_Match=tag)
    approve = f"/v1/proposals/{proposed['id']}/approve"
    for nobody in ("planner", "imaging", "auditor"):
        assert group.ask(nobody, "POST", approve, {}).status_code == 403
    assert group.made("officer", approve, {"reason": "Minutes of 12 November."})["status"] == "approved"
    assert group.read("auditor", path)["limit"]["epsilon"] == 2.5
    own = group.made("officer", path, more | {"limit": {"epsilon": 2.6, "delta": 1e-5}}, If_Match="*")
    assert group.ask("officer", "POST", f"/v1/proposals/{own['id']}/approve", {}).status_code == 403
    assert group.made("colleague", f"/v1/proposals/{own['id']}/reject", {"reason": "Not yet."})["status"] == "rejected"


def _train(group: Group, ids: dict[str, str]) -> dict[str, str]:
    """Each team trains; a run has a key of its own, a sweep is charged as one, and a careless run reports too much."""
    runs = {}
    body = {"name": "scans", "budget": "patients/north/imaging", "event": SAMPLED}
    runs["scans"] = group.made("imaging", "/v1/runs", body)["id"]
    group.keys["scans"] = group.made("imaging", "/v1/api-keys", {"role": "trainer", "scope": runs["scans"]})["key"]
    steps = f"/v1/runs/{runs['scans']}/steps"
    assert group.made("scans", steps, {"count": 20, "first_step": 0})["decision"] == "admitted"
    refused = group.ask("scans", "POST", steps, {"count": 10**7, "first_step": 20}, Idempotency_Key="too-much")
    assert (refused.status_code, refused.json()["binding_account_path"]) == (403, "patients/north/imaging")
    _raise_a_limit(group, ids)
    again = group.ask("scans", "POST", steps, {"count": 10**7, "first_step": 20}, Idempotency_Key="too-much")
    assert (again.status_code, again.json() | {"request_id": None}) == (403, refused.json() | {"request_id": None})
    assert group.made("scans", steps, {"count": 10, "first_step": 20})["epsilon_limit"] == 2.5
    other = {"name": "hearts", "budget": "patients/south/cardio", "event": NOISE}
    runs["hearts"] = group.made("admin", "/v1/runs", other)["id"]
    assert group.ask("scans", "POST", f"/v1/runs/{runs['hearts']}/steps", {}).status_code == 403
    assert group.made("admin", f"/v1/runs/{runs['hearts']}/steps", {"count": 3})["decision"] == "admitted"
    sweep = {"name": "sweep", "budget": "donors/blood", "charging_mode": "repeat_and_select", "trials": TRIALS}
    declared = group.made("admin", "/v1/experiments", sweep)
    assert declared["trials"] > 0 < declared["epsilon"]
    runs["sweep"] = declared["run"]
    both = {"name": "both", "budgets": ["patients/south/cardio", "donors/blood"], "event": NOISE}
    runs["both"] = group.made("admin", "/v1/runs", both)["id"]
    assert group.made("admin", f"/v1/runs/{runs['both']}/steps", {})["decision"] == "admitted"
    runs["careless"] = group.made("admin", "/v1/runs", {"name": "careless", "budget": "donors/blood", "event": NOISE})[
        "id"
    ]
    answer = group.made("admin", f"/v1/runs/{runs['careless']}/steps", {"mode": "report", "count": 10**4})
    assert answer["overdrawn"] is True
    assert group.read("auditor", f"/v1/runs/{runs['careless']}")["status"] == "overdrawn"
    assert group.ask("admin", "POST", f"/v1/runs/{runs['both']}/steps", {}).status_code == 403
    return runs


def _sites_do_not_add_up(group: Group, ids: dict[str, str]) -> None:
    """Nobody is a patient at two sites: the population has lost what the site that spent most has."""
    sites = [group.read("auditor", f"/v1/budgets/{ids[site]}")["epsilon"] for site in ("north", "south")]
    population = group.read("auditor", f"/v1/populations/{ids['patients']}")["epsilon"]
    assert all(site > 0 for site in sites)
    assert population < sum(sites)


def _audit(group: Group, ids: dict[str, str], runs: dict[str, str], folder: Path) -> None:
    """The auditor has a role that changes nothing, the public key, and a script."""
    group.made("imaging", f"/v1/runs/{runs['scans']}/complete", None)
    public = signing_key()[1]
    checkpoint = folder / "checkpoint.json"
    checkpoint.write_text(json.dumps(group.made("auditor", "/v1/checkpoints", None)))
    for path in (f"/v1/runs/{runs['scans']}/statement", f"/v1/populations/{ids['patients']}/statement"):
        document = group.read("auditor", path)
        assert is_signed_by(document, public.read_bytes())
    assert document["payload"]["runs_in_all"] == 3
    [chosen] = group.read("auditor", f"/v1/runs/{runs['sweep']}/statement")["payload"]["experiments"]
    assert chosen["charging_mode"] == "repeat_and_select"
    audit_events = group.read("auditor", "/v1/audit-events?order=oldest&action=budget.limit_changed")["items"]
    [raised] = audit_events
    assert (raised["before"]["limit"]["epsilon"], raised["after"]["limit"]["epsilon"]) == (2.0, 2.5)
    assert group.ask("auditor", "POST", f"/v1/runs/{runs['scans']}/abort", None).status_code == 403
    database = group.server.database_url
    for population in ("patients", "donors"):
        exported = command_line("export", "--population", population, database=database)
        assert exported.returncode == 0, exported.stderr
        file = folder / f"{population}.jsonl"
        file.write_text(exported.stdout)
        done = subprocess.run(
            [sys.executable, "-I", SCRIPT, file], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout
    proof = command_line(
        *("verify", "--read-only", "--checkpoint", str(checkpoint), "--public-key", str(public)), database=database
    )
    assert proof.returncode == 0, proof.stdout
    assert "every curve agrees byte for byte" in proof.stdout


def test_a_hospital_group_governs_its_budgets(group: Group, tmp_path: Path) -> None:
    ids = _build(group)
    runs = _train(group, ids)
    _sites_do_not_add_up(group, ids)
    _audit(group, ids, runs, tmp_path)
