"""Receivers, alerts and their settings over HTTP: what is taken, what is shown to whom, and what the chain keeps."""

from typing import Any

import pytest
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import receivers
from app.service.alerts.receivers import MOST_RECEIVERS
from app.service.verification.verify import verify
from tests.api.conftest import SeededLedger
from tests.api.test_lists import walk
from tests.api.trainer import audited, is_refused, issue
from tests.conftest import Ledger
from tests.service.endpoint import allow_private

URL = "https://alerts.example/privacy?token=hidden"


def made(ledger: Ledger, **answer: object) -> dict[str, Any]:
    return dict(ledger.post("/v1/receivers", {"url": URL} | answer).raise_for_status().json())


def listed(ledger: Ledger, path: str, role: str = "admin") -> list[dict[str, Any]]:
    return list(ledger.get(f"/v1/{path}", role).json()["items"])


def test_receiver_is_read_as_it_was_made_without_its_secret(seeded: SeededLedger) -> None:
    receiver = made(seeded.ledger, account="mimic/icu-team", types=["run.overdrawn", "run.overdrawn"])
    assert receiver.pop("secret").startswith("whsec_")
    assert (receiver["account"], receiver["types"], receiver["url"]) == (seeded.budget, ["run.overdrawn"], URL)
    assert seeded.ledger.get(f"/v1/receivers/{receiver['id']}", "admin").json() == receiver
    assert listed(seeded.ledger, "receivers")[0] == receiver
    for _ in range(MOST_RECEIVERS - 2):
        made(seeded.ledger)
    is_refused(seeded.ledger.post("/v1/receivers", {"url": URL}), 409, "receiver_state_conflict")
    assert seeded.ledger.post(f"/v1/receivers/{seeded.receiver}/disable", None).status_code == 200
    made(seeded.ledger)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"kind": "slack"}, "a receiver of the kind `slack` has a `url` and no `addresses`"),
    ({"kind": "email", "url": URL}, "a receiver of the kind `email` has `addresses` and no `url`"),
    ({"kind": "slack", "url": "http://hooks.slack.example/"}, "begins with https://"),
    ({"kind": "teams", "url": "https://10.0.0.1/"}, "no public address"),
    ({"url": URL, "types": ["receiver.test"]}, "types"),
    ({"kind": "email", "addresses": ["a@b.example"]}, "EPSILON_LEDGER_SMTP_HOST"),
]
NO_ADDRESSES = [
    *("", "dana", "@b.example", "a@", "a b@c.example", ".a@b.example", "a..b@c.example", "a@b..example"),
    *("a@b.example\r\nBcc: c@d.example", "a@b.example,c@d.example", "<a@b.example>", "ä@b.example", '"a"@b.example'),
    *("a@-b.example", "a@b.example\n", "a" * 250 + "@b.example", "=?utf-8?q?=0d=0aBcc:?=@b.example"),
]


def test_receiver_that_contradicts_itself_is_refused(shared: SeededLedger) -> None:
    mails: list[dict[str, object]] = [{"kind": "email", "addresses": [each]} for each in NO_ADDRESSES]
    for body, words in (*WRONG, *((mail, "addresses") for mail in mails)):
        assert words in str(is_refused(shared.ledger.post("/v1/receivers", body), 422, "invalid_request")), body
    for path, sent in (("/v1/receivers", {"url": URL}), (f"/v1/receivers/{shared.receiver}/rotate", {})):
        reply = shared.ledger.post(path, sent, Idempotency_Key="k")  # its answer has a secret, which would be stored
        assert "Idempotency-Key" in is_refused(reply, 422, "invalid_request")["detail"]
    for thresholds in ([0.8, 0.5], [0.5, 0.5], [0], [10.5], [n / 20 for n in range(1, 12)]):
        reply = shared.ledger.put(f"/v1/accounts/{shared.budget}/alert-settings", {"thresholds": thresholds})
        is_refused(reply, 422, "invalid_request")


@pytest.mark.parametrize("kind", ["slack", "email"])
def test_receiver_without_a_secret_is_kept_and_proven_as_a_webhook_is(seeded: SeededLedger, kind: str) -> None:
    ledger = seeded.ledger
    allow_private(ledger)
    where: dict[str, object] = {"addresses": ["a@b.example", "c@d.example"], "url": None}
    receiver = made(ledger, kind=kind, **(where if kind == "email" else {}))
    assert receiver.pop("secret") is None
    path = f"/v1/receivers/{receiver['id']}"
    assert ledger.get(path, "admin").json() == receiver
    assert receiver["url"] == (None if kind == "email" else "https://alerts.example/…dden")
    is_refused(ledger.post(f"{path}/rotate", None), 422, "invalid_request")
    assert [ledger.post(f"{path}/{verb}", None).status_code for verb in ("disable", "enable")] == [200, 200]
    log = ledger.get("/v1/audit-events", "admin").text
    assert ("token=hidden" in log, "a@b.example" in log) == (False, False)
    assert seeded.sound()
    with ledger.database.write(ALL_TENANTS) as tx:
        changed = {"addresses": '["x@b.example"]'} if kind == "email" else {"url": "https://elsewhere.example"}
        tx.execute(update(receivers).where(receivers.c.id == receiver["id"]).values(changed))
    assert any("is not as the audit log has it" in each for each in verify(ledger.database).problems)


def test_disabled_receiver_takes_nothing_until_it_is_enabled_again(seeded: SeededLedger) -> None:
    path, ledger = f"/v1/receivers/{seeded.receiver}", seeded.ledger
    before = ledger.get(path, "admin").json()
    first, again = (ledger.post(f"{path}/disable", None) for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert first.json()["disabled_reason"].startswith("It was disabled by key …")
    for refused in (f"{path}/rotate", f"{path}/test", f"/v1/deliveries/{seeded.delivery}/retry"):
        is_refused(ledger.post(refused, None), 409, "receiver_state_conflict")
    [delivery] = listed(ledger, "deliveries")
    assert (delivery["status"], delivery["next_attempt_at"]) == ("given_up", None)
    first, again = (ledger.post(f"{path}/enable", None) for _ in range(2))
    assert (first.status_code, first.json(), first.content) == (200, before, again.content)
    # What was given up stays so, until somebody asks for it.
    assert listed(ledger, "deliveries")[0]["status"] == "given_up"
    assert ledger.post(f"/v1/deliveries/{seeded.delivery}/retry", None).json()["status"] == "pending"
    assert ledger.post(f"{path}/test", None).status_code == 201
    actions = [each["action"] for each in audited(ledger, "action=receiver.*")]
    assert actions == ["receiver.created", "receiver.disabled", "receiver.enabled"]
    assert seeded.sound()


@pytest.mark.parametrize("disabled", [False, True])
def test_deleted_receiver_is_gone_with_its_deliveries_and_its_alerts_stay(
    seeded: SeededLedger, *, disabled: bool
) -> None:
    ledger, path = seeded.ledger, f"/v1/receivers/{seeded.receiver}"
    other = made(ledger)["id"]
    kept = ledger.post(f"/v1/receivers/{other}/test", None).json()["id"]
    alerts = ledger.get("/v1/alerts").json()
    if disabled:
        ledger.post(f"{path}/disable", None)
    first, again = (ledger.http.delete(path, headers=ledger.headers("privacy_officer")) for _ in range(2))
    assert (first.status_code, first.content) == (204, b"")
    for gone in (again, ledger.get(path, "admin")):
        is_refused(gone, 404, "not_found")
    assert [[each["id"] for each in listed(ledger, kind)] for kind in ("receivers", "deliveries")] == [[other], [kept]]
    assert ledger.get("/v1/alerts").json() == alerts
    [entry] = audited(ledger, "action=receiver.deleted")
    assert (entry["subject"], entry["after"], entry["before"]["host"]) == (seeded.receiver, None, "alerts.example")
    assert seeded.sound()


def test_audit_log_has_changes_of_receivers_and_no_secret(seeded: SeededLedger) -> None:
    receiver, account = made(seeded.ledger), f"/v1/accounts/{seeded.budget}/alert-settings"
    seeded.ledger.post(f"/v1/receivers/{receiver['id']}/rotate", {"overlap_seconds": 60})
    assert seeded.ledger.put(account, {"thresholds": [0.25], "forecast_days": 0}).status_code == 200
    created, rotated = audited(seeded.ledger, f"subject={receiver['id']}")
    shown = {name: value for name, value in created["after"].items() if not name.endswith("_sha256")}
    assert shown == {"kind": "webhook", "host": "alerts.example", "types": [], "account": None}
    assert (rotated["action"], rotated["after"]["overlap_seconds"]) == ("receiver.secret_rotated", 60)
    [replaced] = audited(seeded.ledger, "action=alert_settings.replaced")
    assert replaced["after"] == {"thresholds": [0.25], "forecast_days": 0}
    log = seeded.ledger.get("/v1/audit-events?limit=200", "admin").text
    assert (receiver["secret"] in log, "token=hidden" in log) == (False, False)


def test_alert_settings_hold_for_the_next_charge_and_tell_reached_thresholds(seeded: SeededLedger) -> None:
    settings = f"/v1/accounts/{seeded.budget}/alert-settings"
    usual = {"thresholds": [0.5, 0.8, 1.0], "forecast_days": 30}
    assert seeded.ledger.get(settings).json() == usual

    def answer() -> list[float]:
        alerts = listed(seeded.ledger, f"alerts?account={seeded.budget}", "viewer")
        return sorted(item["data"]["threshold"] for item in alerts)

    def used() -> float:
        return float(seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["used"])

    assert seeded.steps(count=50).status_code == 200
    before, now = answer(), used()
    below, above = now / 2, now * 1.2
    for _ in range(2):
        assert seeded.ledger.put(settings, {"thresholds": [below, above]}).status_code == 200
        assert answer() == sorted({*before, below})
    assert seeded.steps(count=9).status_code == 200
    assert used() < above, "60 of 51 steps would be more"
    assert answer() == sorted({*before, below})
    assert seeded.steps(count=2).status_code == 200
    assert used() >= above
    assert answer() == sorted({*before, below, above})


def test_lists_are_filtered_and_walked_from_the_newest(seeded: SeededLedger) -> None:
    both = [seeded.receiver, made(seeded.ledger)["id"]]
    for receiver in both * 2:
        assert seeded.ledger.post(f"/v1/receivers/{receiver}/test", None).status_code == 201
    found = listed(seeded.ledger, "deliveries?limit=200")
    assert [item["id"] for item in found] == sorted((item["id"] for item in found), reverse=True)
    assert len(found) == 5
    assert walk(seeded.ledger, "/v1/deliveries", 2, "admin") == found
    mine = [item for item in found if item["receiver"] == both[1]]
    assert listed(seeded.ledger, f"deliveries?receiver={both[1]}&status=pending") == mine
    assert listed(seeded.ledger, f"deliveries?alert={found[0]['alert']}") == found[:1]
    tests = listed(seeded.ledger, "alerts?type=receiver.test")
    assert {item["id"] for item in tests} == {item["alert"] for item in found}


def test_key_of_a_sub_tree_sees_what_lies_in_it(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    ledger.budget("other")
    most = ledger.get(f"/v1/runs/{seeded.run}").json()["steps_remaining"]
    for run in (seeded.run, ledger.run("mimic/other")):
        assert seeded.steps(run=run, count=most * 6 // 10).status_code == 200
    issue(ledger, "bound", "privacy_officer", "mimic/icu-team")
    everything, seen = listed(ledger, "alerts"), listed(ledger, "alerts", "bound")
    assert {item["data"]["account_path"] for item in seen} == {"mimic/icu-team"}
    assert len(seen) < len(everything)
    for path in ("receivers", f"receivers/{seeded.receiver}", "deliveries"):
        is_refused(ledger.get(f"/v1/{path}", "bound"), 403, "permission_denied")
    for account, status in ((seeded.budget, 200), (seeded.population, 403)):
        for what in ("alert-settings", "forecast"):
            assert ledger.get(f"/v1/accounts/{account}/{what}", "bound").status_code == status
        replaced = ledger.put(f"/v1/accounts/{account}/alert-settings", {"thresholds": [0.5]}, "bound")
        assert replaced.status_code == status
