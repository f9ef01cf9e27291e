"""Settings with a revision: read with a tag, made stricter by one person and looser by two, and replayed."""

from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.api.trainer import approve, audited, is_refused

WHY = "The board of the hospital has decided so."


@dataclass(frozen=True)
class Case:
    """A setting, with a first value, a looser one, another looser one, and one that is stricter than the first."""

    name: str
    values: tuple[Any, Any, Any, Any]
    proposer: str
    of_organisation: bool = False

    def subject(self, seeded: SeededLedger) -> str:
        return "" if self.of_organisation else f"accounts/{seeded.budget}/"

    def get(self, seeded: SeededLedger) -> httpx2.Response:
        return seeded.ledger.get(f"/v1/{self.subject(seeded)}{self.name}")

    def send(self, seeded: SeededLedger, value: object, tag: str | None = "*", role: str = "admin") -> httpx2.Response:
        path, body = f"/v1/{self.subject(seeded)}{self.name}", {self.name: value, "reason": WHY}
        if self.name != "limit":
            return seeded.ledger.put(path, body, role, tag)
        return seeded.ledger.post(path, body, role, **({} if tag is None else {"If_Match": tag}))


def _limit(epsilon: float) -> dict[str, float]:
    return {"epsilon": epsilon, "delta": 1e-5}


def _unlock(days: int, aging_seconds: int = 60) -> dict[str, Any]:
    since = "2100-01-01T00:00:00Z"
    unlock = {"type": "over_time", "over_seconds": days * 24 * 3600, "parts": 4, "since": since}
    return {"aging_seconds": aging_seconds, "unlock": unlock}


POLICIES: tuple[Any, Any, Any, Any] = ({"max_epsilon": 1.0}, {}, {"max_epsilon": 2.0}, {"max_epsilon": 0.5})
CASES = [
    Case("limit", (_limit(0.9), _limit(2.0), _limit(2.5), _limit(0.8)), "planner"),
    Case("policy", POLICIES, "privacy_officer"),
    Case("policy", POLICIES, "privacy_officer", of_organisation=True),
    Case("allocation", (_unlock(40), _unlock(20), _unlock(10), _unlock(40, 61)), "budget_admin"),
]


@pytest.mark.parametrize("case", CASES, ids=["limit", "policy", "policy of the organisation", "allocation"])
def test_setting_takes_one_person_to_tighten_and_two_to_loosen(seeded: SeededLedger, case: Case) -> None:
    first, looser, other, stricter = case.values
    member, tag = f"{case.name}_revision", case.get(seeded).headers["etag"]
    is_refused(case.send(seeded, first, None), 428, "precondition_required")
    changed = case.send(seeded, first, tag)
    assert (changed.status_code, changed.json()["revision"]) == (200, 1), changed.text
    assert changed.headers["etag"] == case.get(seeded).headers["etag"] != tag
    assert is_refused(case.send(seeded, stricter, tag), 412, "precondition_failed")[member] == 1
    before = seeded.rows()
    if case.name != "limit":
        assert case.send(seeded, first).json() == changed.json()
        assert seeded.rows() == before

    proposed = case.send(seeded, looser)
    assert (proposed.status_code, proposed.json()["kind"]) == (201, case.name), proposed.text
    assert proposed.json()["proposed"].keys() == {case.name, "revision"}
    assert case.get(seeded).json() == changed.json()
    before = seeded.rows()
    again = case.send(seeded, looser)
    assert (again.status_code, again.json()) == (201, proposed.json())
    for value, role in ((other, "admin"), (looser, case.proposer)):
        refused = is_refused(case.send(seeded, value, role=role), 422, "invalid_request")
        assert refused["proposal"] == proposed.json()["id"]
    assert seeded.rows() == before

    assert case.send(seeded, stricter).json()["revision"] == 2
    path = f"/v1/proposals/{proposed.json()['id']}"
    stale = is_refused(seeded.ledger.post(f"{path}/approve", {}, "privacy_officer"), 412, "precondition_failed")
    assert (stale[member], f"The {case.name} was changed since this was proposed" in stale["detail"]) == (2, True)
    assert seeded.ledger.post(f"{path}/reject", {}).status_code == 200
    approve(seeded.ledger, case.send(seeded, looser))
    assert case.get(seeded).json()["revision"] == 3
    action = "budget.limit_changed" if case.name == "limit" else f"{case.name}.replaced"
    events = [each for each in audited(seeded.ledger, f"action={action}") if each["reason"] == WHY]
    assert [each["before"]["revision"] for each in events] == [0, 1, 2]
    assert [each["after"]["revision"] for each in events] == [1, 2, 3]
    assert seeded.sound()
