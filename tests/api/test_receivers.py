"""Receivers, alerts and their settings over HTTP: what is taken, what is shown to whom, and what the chain keeps."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import receivers
from app.service.alerts.receivers import MOST_RECEIVERS
from app.service.verification import verify
from tests.api.conftest import SeededLedger
from tests.api.trainer import is_refused
from tests.conftest import Ledger
from tests.service.endpoint import allow_private

URL = "https://alerts.example/privacy?token=hidden"


def made(ledger: Ledger, **answer: object) -> dict[str, Any]:
    reply = ledger.post("/v1/receivers", {"url": URL} | answer)
    assert reply.status_code == 201, reply.text
    receiver: dict[str, Any] = reply.json()
    return receiver


def audit_events(ledger: Ledger) -> list[tuple[str, dict[str, Any] | None]]:
    items = ledger.get("/v1/audit-events?order=oldest&limit=200", "admin").json()["items"]
    return [
        (item["action"], item["after"]) for item in items if item["action"].startswith(("receiver.", "alert_settings."))
    ]


def put(ledger: Ledger, account: str, body: object, role: str = "admin") -> httpx2.Response:
    path = f"/v1/accounts/{account}/alert-settings"
    reply: httpx2.Response = ledger.http.put(path, json=body, headers=ledger.headers(role))
    return reply


def test_receiver_is_read_as_it_was_made_without_its_secret(seeded: SeededLedger) -> None:
    receiver = made(seeded.ledger, account="mimic/icu-team", types=["run.overdrawn", "run.overdrawn"])
    assert receiver.pop("secret").startswith("whsec_")
    assert (receiver["account"], receiver["types"], receiver["url"]) == (seeded.budget, ["run.overdrawn"], URL)
    assert seeded.ledger.get(f"/v1/receivers/{receiver['id']}", "admin").json() == receiver
    assert seeded.ledger.get("/v1/receivers", "admin").json()["items"][0] == receiver


WRONG: list[tuple[dict[str, object], str]] = [
    ({"kind": "slack"}, "a receiver of the kind `slack` has a `url` and no `addresses`"),
    ({"kind": "teams", "url": URL, "addresses": ["a@b.example"]}, "has a `url` and no `addresses`"),
    ({"kind": "email", "url": URL}, "a receiver of the kind `email` has `addresses` and no `url`"),
    ({"kind": "slack", "url": "http://hooks.slack.example/"}, "begins with https://"),
    ({"kind": "teams", "url": "https://10.0.0.1/"}, "no public address"),
    ({"url": URL, "types": ["receiver.test"]}, "types"),
    ({"kind": "email", "addresses": ["a@b.example"]}, "EPSILON_LEDGER_SMTP_HOST"),
]
NO_ADDRESSES = [
    *(
        "",
        "dana",
        "@b.example",
        "a@",
        "a b@c.example",
        ".a@b.example",
        "a..b@c.example",
        "a@b..example",
        "a@-b.example",
    ),
    *("a@b.example\r\nBcc: c@d.example", "a@b.example,c@d.example", "<a@b.example>", "ä@b.example", '"a"@b.example'),
    *("a@b.example\n", "a" * 250 + "@b.example", "=?utf-8?q?=0d=0aBcc:?=@b.example"),
]


def test_receiver_that_contradicts_itself_is_refused(shared: SeededLedger) -> None:
    addresses: list[tuple[dict[str, object], str]] = [
        ({"kind": "email", "addresses": [each]}, "addresses") for each in NO_ADDRESSES
    ]
    for body, words in (*WRONG, *addresses):
        assert words in str(is_refused(shared.ledger.post("/v1/receivers", body), 422, "invalid_request")), body
    for path, sent in (("/v1/receivers", {"url": URL}), (f"/v1/receivers/{shared.receiver}/rotate", {})):
        reply = shared.ledger.post(path, sent, Idempotency_Key="k")  # its answer has a secret, which would be stored
        assert "Idempotency-Key" in is_refused(reply, 422, "invalid_request")["detail"]


@pytest.mark.parametrize("kind", ["slack", "teams", "email"])
def test_receiver_without_a_secret_is_kept_and_proven_as_a_webhook_is(seeded: SeededLedger, kind: str) -> None:
    ledger = seeded.ledger
    allow_private(ledger)
    where: dict[str, object] = {"addresses": ["a@b.example", "c@d.example"], "url": None}
    body = {"kind": kind, "url": URL} | (where if kind == "email" else {})
    receiver = made(ledger, **body)
    assert receiver.pop("secret") is None
    path = f"/v1/receivers/{receiver['id']}"
    assert ledger.get(path, "admin").json() == receiver
    assert receiver["url"] == (None if kind == "email" else "https://alerts.example/…dden")
    reply = ledger.post(f"{path}/rotate", None)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    for verb in ("disable", "enable"):
        assert ledger.post(f"{path}/{verb}", None).status_code == 200
    assert "token=hidden" not in ledger.get("/v1/audit-events", "admin").text
    assert "a@b.example" not in ledger.get("/v1/audit-events", "admin").text
    assert verify(ledger.database).problems == ()
    with ledger.database.write(ALL_TENANTS) as tx:
        changed = {"addresses": '["x@b.example"]'} if kind == "email" else {"url": "https://elsewhere.example"}
        tx.execute(update(receivers).where(receivers.c.id == receiver["id"]).values(changed))
    assert any("is not as the audit log has it" in each for each in verify(ledger.database).problems)


def test_organisation_has_so_many_receivers_and_no_more(seeded: SeededLedger) -> None:
    for _ in range(MOST_RECEIVERS - 1):
        made(seeded.ledger)
    reply = seeded.ledger.post("/v1/receivers", {"url": URL})
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")
    assert seeded.ledger.post(f"/v1/receivers/{seeded.receiver}/disable", None).status_code == 200
    made(seeded.ledger)


def test_disabled_receiver_stays_so_and_takes_nothing(seeded: SeededLedger) -> None:
    path = f"/v1/receivers/{seeded.receiver}"
    first, again = (seeded.ledger.post(f"{path}/disable", None) for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    assert first.json()["disabled_reason"].startswith("It was disabled by key …")
    for audit_event in ("rotate", "test"):
        reply = seeded.ledger.post(f"{path}/{audit_event}", None)
        assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")
    reply = seeded.ledger.post(f"/v1/deliveries/{seeded.delivery}/retry", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")
    [delivery] = seeded.ledger.get("/v1/deliveries", "admin").json()["items"]
    assert (delivery["status"], delivery["next_attempt_at"]) == ("given_up", None)


def test_receiver_is_enabled_again_and_gets_what_comes_then(seeded: SeededLedger) -> None:
    path = f"/v1/receivers/{seeded.receiver}"
    before = seeded.ledger.get(path, "admin").json()
    seeded.ledger.post(f"{path}/disable", None)
    first, again = (seeded.ledger.post(f"{path}/enable", None) for _ in range(2))
    assert (first.status_code, first.json()) == (200, before)
    assert first.content == again.content
    # What was given up stays so, until somebody asks for it.
    assert seeded.ledger.get("/v1/deliveries", "admin").json()["items"][0]["status"] == "given_up"
    assert seeded.ledger.post(f"/v1/deliveries/{seeded.delivery}/retry", None).json()["status"] == "pending"
    assert seeded.ledger.post(f"{path}/test", None).status_code == 201
    actions = [action for action, _ in audit_events(seeded.ledger)]
    assert actions == ["receiver.created", "receiver.disabled", "receiver.enabled"]
    assert verify(seeded.ledger.database).problems == ()


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
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert ledger.get(path, "admin").status_code == 404
    assert [each["id"] for each in ledger.get("/v1/receivers", "admin").json()["items"]] == [other]
    assert [each["id"] for each in ledger.get("/v1/deliveries", "admin").json()["items"]] == [kept]
    assert ledger.get("/v1/alerts").json() == alerts
    [entry] = ledger.get("/v1/audit-events?action=receiver.deleted", "admin").json()["items"]
    assert (entry["subject"], entry["after"], entry["before"]["host"]) == (seeded.receiver, None, "alerts.example")
    assert verify(ledger.database).problems == ()


def test_audit_log_has_changes_of_receivers_and_no_secret(seeded: SeededLedger) -> None:
    receiver = made(seeded.ledger)
    seeded.ledger.post(f"/v1/receivers/{receiver['id']}/rotate", {"overlap_seconds": 60})
    seeded.ledger.post(f"/v1/receivers/{receiver['id']}/disable", None)
    put(seeded.ledger, seeded.budget, {"thresholds": [0.25], "forecast_days": 0})
    created, _, rotated, _, replaced = sorted(audit_events(seeded.ledger), key=lambda each: ORDER.index(each[0]))
    shown = {name: value for name, value in (created[1] or {}).items() if not name.endswith("_sha256")}
    assert shown == {"kind": "webhook", "host": "alerts.example", "types": [], "account": None}
    assert (rotated[1] or {})["overlap_seconds"] == 60
    assert replaced[1] == {"thresholds": [0.25], "forecast_days": 0}
    text = seeded.ledger.get("/v1/audit-events?order=oldest&limit=200", "admin").text
    assert receiver["secret"] not in text
    assert "token=hidden" not in text


ORDER = ["receiver.created", "receiver.secret_rotated", "receiver.disabled", "alert_settings.replaced"]


@pytest.mark.parametrize("thresholds", [[0.8, 0.5], [0.5, 0.5], [0], [10.5], [n / 20 for n in range(1, 12)]], ids=str)
def test_thresholds_that_do_not_rise_are_refused(shared: SeededLedger, thresholds: list[float]) -> None:
    is_refused(put(shared.ledger, shared.budget, {"thresholds": thresholds}), 422, "invalid_request")


def test_alert_settings_hold_for_the_next_charge_and_tell_reached_thresholds(seeded: SeededLedger) -> None:
    account = f"/v1/alerts?account={seeded.budget}"
    assert seeded.ledger.get(f"/v1/accounts/{seeded.budget}/alert-settings").json() == {
        "thresholds": [0.5, 0.8, 1.0],
        "forecast_days": 30,
    }

    def answer() -> list[float]:
        return sorted(item["data"]["threshold"] for item in seeded.ledger.get(account).json()["items"])

    epsilon = seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["epsilon"]  # of 1
    before = answer()
    below, above = round(epsilon - 0.05, 3), round(epsilon + 0.01, 3)
    assert put(seeded.ledger, seeded.budget, {"thresholds": [below, above]}).status_code == 200
    assert answer() == sorted({*before, below})
    assert put(seeded.ledger, seeded.budget, {"thresholds": [below, above]}).status_code == 200
    assert answer() == sorted({*before, below})
    while seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["epsilon"] < above:
        assert seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", {"count": 5}).status_code == 200
    assert answer() == sorted({*before, below, above})


def test_lists_are_filtered_and_walked_from_the_newest(seeded: SeededLedger) -> None:
    receivers = [seeded.receiver, made(seeded.ledger)["id"]]
    for receiver in receivers * 3:
        assert seeded.ledger.post(f"/v1/receivers/{receiver}/test", None).status_code == 201
    found = seeded.ledger.get("/v1/deliveries?limit=200", "admin").json()["items"]
    assert [item["id"] for item in found] == sorted((item["id"] for item in found), reverse=True)
    assert len(found) == 7
    walked: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        page = seeded.ledger.get(f"/v1/deliveries?limit=2&after={page['next']}", "admin").json()
        walked += page["items"]
    assert walked == found
    mine = seeded.ledger.get(f"/v1/deliveries?receiver={receivers[1]}&status=pending", "admin").json()["items"]
    assert mine == [item for item in found if item["receiver"] == receivers[1]]
    one = seeded.ledger.get(f"/v1/deliveries?alert={found[0]['alert']}", "admin").json()["items"]
    assert one == found[:1]
    tests = seeded.ledger.get("/v1/alerts?type=receiver.test").json()["items"]
    assert {item["id"] for item in tests} == {item["alert"] for item in found}


def test_key_of_a_sub_tree_sees_what_lies_in_it(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    ledger.budget("other")
    other = ledger.run("mimic/other")
    for run in (seeded.run, other):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 50}).status_code == 200
    issued = ledger.post("/v1/api-keys", {"role": "privacy_officer", "scope": "mimic/icu-team"})
    assert issued.status_code == 201, issued.text
    headers = {"Authorization": f"Bearer {issued.json()['key']}"}

    def get(path: str) -> httpx2.Response:
        reply: httpx2.Response = ledger.http.get(path, headers=headers)
        return reply

    everything = ledger.get("/v1/alerts").json()["items"]
    seen = get("/v1/alerts").json()["items"]
    assert {item["data"]["account_path"] for item in seen} == {"mimic/icu-team"}
    assert len(seen) < len(everything)
    for path in ("/v1/receivers", f"/v1/receivers/{seeded.receiver}", "/v1/deliveries"):
        assert get(path).status_code == 403, path
    for what in ("alert-settings", "forecast"):
        assert get(f"/v1/accounts/{seeded.budget}/{what}").status_code == 200
        assert get(f"/v1/accounts/{seeded.population}/{what}").status_code == 403
    body = {"thresholds": [0.5]}
    allowed = ledger.http.put(f"/v1/accounts/{seeded.budget}/alert-settings", json=body, headers=headers)
    refused = ledger.http.put(f"/v1/accounts/{seeded.population}/alert-settings", json=body, headers=headers)
    assert (allowed.status_code, refused.status_code) == (200, 403)
