"""Whoever asks too often is told when to come again, and nothing was done; the others are served."""

from pathlib import Path

import httpx2
import pytest

from app.service.auth import credential_cache
from tests.api.conftest import furnish
from tests.conftest import Ledger, open_ledger
from tests.persistence.dump import dump

HARDLY = 1e-3
"""Tokens a second: none flows in while a test runs."""


def _check(reply: httpx2.Response, longest: float = 1 / HARDLY) -> None:
    assert (reply.status_code, reply.json()["code"]) == (429, "rate_limited")
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["retry-after"] == str(reply.json()["retry_after"])
    assert 0 < reply.json()["retry_after"] <= longest


def test_key_that_asks_too_often_is_held_up(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_per_second=HARDLY, rate_limit_burst=20) as ledger:
        seeded = furnish(ledger)
        steps = f"/v1/runs/{seeded.run}/steps"
        statuses = [ledger.post(steps, {}, "trainer").status_code for _ in range(20)]
        # Three were taken by the furnishing.
        assert statuses == [200] * 17 + [429] * 3
        before = dump(ledger.database)
        _check(ledger.post(steps, {}, "trainer"))
        _check(ledger.post(f"{steps}?dry_run=true", {}, "trainer"))
        _check(ledger.get("/v1/runs", "trainer"))
        assert dump(ledger.database) == before
        assert ledger.post(steps, {}, "admin").status_code == 200
        assert ledger.get("/v1/runs", "viewer").status_code == 200


def _knock(ledger: Ledger, key: str) -> httpx2.Response:
    return ledger.http.get("/v1/runs", headers={"Authorization": f"Bearer {key}"})


def test_strangers_are_held_up_and_known_keys_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(tmp_path, rate_limit_anonymous_per_second=0.2) as ledger:  # two at once
        known, new = (ledger.keys["hospital", role] for role in ("viewer", "trainer"))
        assert _knock(ledger, known).status_code == 200
        statuses = [_knock(ledger, f"key_{number}.secret").status_code for number in range(4)]
        assert statuses == [401, 401, 429, 429]
        for reply in (_knock(ledger, new), ledger.http.get("/v1/runs")):
            _check(reply, 5)
        monkeypatch.setattr(credential_cache, "monotonic", lambda: 1e12)  # what was remembered is to be looked up again
        assert _knock(ledger, known).status_code == 200


def test_known_key_costs_no_token_of_its_address(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_anonymous_per_second=0.1) as ledger:
        assert {_knock(ledger, key).status_code for key in ledger.keys.values()} == {200}
