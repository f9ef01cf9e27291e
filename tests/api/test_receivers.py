"""Receivers, alerts and their settings over HTTP: what is taken, what is shown to whom, and what the chain keeps."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, select, update

from app.ledger.alerts import AlertType
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import deliveries, receivers
from app.service.alerts.receivers import MOST_RECEIVERS
from app.service.verification import verify
from tests.api.conftest import SeededLedger
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


def test_a_receiver_is_read_as_it_was_made_without_its_secret(seeded: SeededLedger) -> None:
    receiver = made(seeded.ledger, account="mimic/icu-team", types=["run.overdrawn", "run.overdrawn"])
    assert receiver.pop("secret").startswith("whsec_")
    assert (receiver["account"], receiver["types"], receiver["url"]) == (seeded.budget, ["run.overdrawn"], URL)
    assert seeded.ledger.get(f"/v1/receivers/{receiver['id']}", "admin").json() == receiver
    assert seeded.ledger.get("/v1/receivers", "admin").json()["items"][0] == receiver


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": ""},
        {"url": "http://alerts.example/"},
        {"url": "https://127.0.0.1/"},
        {"url": "https://alerts.example/" + "a" * 2000},
        {"url": URL, "types": ["everything"]},
        {"url": URL, "types": ["receiver.test"]},
        {"url": URL, "types": "run.overdrawn"},
        {"url": URL, "types": ["run.overdrawn"] * (len(AlertType) + 1)},
        {"url": URL, "account": ""},
        {"url": URL, "secret": "whsec_bWluZQ=="},
    ],
)
def test_a_receiver_that_cannot_be_is_refused(shared: SeededLedger, body: dict[str, object]) -> None:
    before = shared.rows()
    reply = shared.ledger.post("/v1/receivers", body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert shared.rows() == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "pager", "url": URL}, "kind"),
        ({"kind": "slack"}, "a receiver of the kind `slack` has a `url` and no `addresses`"),
        ({"kind": "teams", "url": URL, "addresses": ["a@b.example"]}, "has a `url` and no `addresses`"),
        ({"kind": "email", "url": URL}, "a receiver of the kind `email` has `addresses` and no `url`"),
        ({"kind": "email", "addresses": []}, "has `addresses` and no `url`"),
        ({"kind": "email", "addresses": ["a@b.example"] * 21}, "addresses"),
        ({"kind": "slack", "url": "http://hooks.slack.example/"}, "begins with https://"),
        ({"kind": "teams", "url": "https://10.0.0.1/"}, "no public address"),
        ({"kind": "email", "addresses": ["a@b.example"]}, "EPSILON_LEDGER_SMTP_HOST"),
    ],
)
def test_what_is_wrong_with_a_receiver_is_said(shared: SeededLedger, body: dict[str, object], words: str) -> None:
    reply = shared.ledger.post("/v1/receivers", body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert words in reply.text


@pytest.mark.parametrize(
    "address",
    [
        *("", "dana", "@b.example", "a@", "a b@c.example", ".a@b.example", "a..b@c.example", "a@b..example"),
        *("a@-b.example", "a@b.example\r\nBcc: c@d.example", "a@b.example,c@d.example", "<a@b.example>"),
        *("ä@b.example", '"a"@b.example', "a@b.example\n", "a" * 250 + "@b.example"),
        "=?utf-8?q?=0d=0aBcc:?=@b.example",
    ],
)
def test_an_address_that_is_none_is_refused(shared: SeededLedger, address: str) -> None:
    reply = shared.ledger.post("/v1/receivers", {"kind": "email", "addresses": [address]})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "addresses" in reply.text


@pytest.mark.parametrize("kind", ["slack", "teams", "email"])
def test_a_receiver_without_a_secret_is_kept_and_proven_as_a_webhook_is(seeded: SeededLedger, kind: str) -> None:
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


def test_an_account_that_is_not_there_is_404(shared: SeededLedger) -> None:
    for account in ("bud_nowhere", "mimic/nobody"):
        reply = shared.ledger.post("/v1/receivers", {"url": URL, "account": account})
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_an_organisation_has_so_many_receivers_and_no_more(seeded: SeededLedger) -> None:
    for _ in range(MOST_RECEIVERS - 1):
        made(seeded.ledger)
    reply = seeded.ledger.post("/v1/receivers", {"url": URL})
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")
    assert seeded.ledger.post(f"/v1/receivers/{seeded.receiver}/disable", None).status_code == 200
    made(seeded.ledger)


@pytest.mark.parametrize("audit_event", ["", "/{}/rotate"])
def test_an_idempotency_key_is_refused_for_a_secret_would_be_stored(shared: SeededLedger, audit_event: str) -> None:
    before = shared.rows()
    path = "/v1/receivers" + audit_event.format(shared.receiver)
    reply = shared.ledger.post(path, {} if audit_event else {"url": URL}, Idempotency_Key="k")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert "Idempotency-Key" in reply.json()["detail"]
    assert shared.rows() == before


def test_a_receiver_is_tried_once_for_one_key(seeded: SeededLedger) -> None:
    path = f"/v1/receivers/{seeded.receiver}/test"
    first, again = (seeded.ledger.post(path, None, Idempotency_Key="k") for _ in range(2))
    assert (first.content, again.headers["Idempotent-Replayed"]) == (again.content, "true")
    other = seeded.ledger.post(f"/v1/receivers/{made(seeded.ledger)['id']}/test", None, Idempotency_Key="k")
    assert other.json()["code"] == "idempotency_key_reused"


def test_a_disabled_receiver_stays_so_and_takes_nothing(seeded: SeededLedger) -> None:
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


def test_a_receiver_is_enabled_again_and_gets_what_comes_then(seeded: SeededLedger) -> None:
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


def test_an_enabled_receiver_begins_without_failures(seeded: SeededLedger) -> None:
    with seeded.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(receivers).values(consecutive_failures=30, failing_since=datetime.now(UTC)))
    for verb in ("disable", "enable"):
        assert seeded.ledger.post(f"/v1/receivers/{seeded.receiver}/{verb}", None).status_code == 200
    with seeded.ledger.database.read(ALL_TENANTS) as tx:
        row = tx.execute(select(receivers.c.consecutive_failures, receivers.c.failing_since)).one()
    assert tuple(row) == (0, None)


def test_a_receiver_over_the_maximum_is_not_enabled(seeded: SeededLedger) -> None:
    path = f"/v1/receivers/{seeded.receiver}"
    seeded.ledger.post(f"{path}/disable", None)
    for _ in range(MOST_RECEIVERS):
        made(seeded.ledger)
    reply = seeded.ledger.post(f"{path}/enable", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")


@pytest.mark.parametrize("disabled", [False, True])
def test_a_deleted_receiver_is_gone_with_its_deliveries_and_its_alerts_stay(
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


def test_a_receiver_deleted_by_hand_is_found(seeded: SeededLedger) -> None:
    with seeded.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(delete(deliveries))
        tx.execute(delete(receivers))
    assert any(f"{seeded.receiver} of receivers is missing" in each for each in verify(seeded.ledger.database).problems)


@pytest.mark.parametrize("seconds", [-1, 7 * 86400 + 1, 1.5, "1", True, None])
def test_an_overlap_is_of_seconds_up_to_a_week(shared: SeededLedger, seconds: object) -> None:
    reply = shared.ledger.post(f"/v1/receivers/{shared.receiver}/rotate", {"overlap_seconds": seconds})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


def test_the_chain_keeps_who_changed_what_and_no_secret(seeded: SeededLedger) -> None:
    receiver = made(seeded.ledger)
    seeded.ledger.post(f"/v1/receivers/{receiver['id']}/rotate", {"overlap_seconds": 60})
    seeded.ledger.post(f"/v1/receivers/{receiver['id']}/disable", None)
    put(seeded.ledger, seeded.budget, {"thresholds": [0.25], "forecast_days": 0})
    digests = {"url_sha256", "addresses_sha256", "secret_sha256"}
    kept = [
        (action, after and {name: value for name, value in after.items() if name not in digests})
        for action, after in audit_events(seeded.ledger)
    ]
    assert [action for action, _ in sorted(kept, key=str)] == [
        *(
            "alert_settings.replaced",
            "receiver.created",
            "receiver.created",
            "receiver.disabled",
            "receiver.secret_rotated",
        ),
    ]
    assert ("receiver.secret_rotated", {"overlap_seconds": 60}) in kept
    assert ("receiver.created", {"kind": "webhook", "host": "alerts.example", "types": [], "account": None}) in kept
    assert ("alert_settings.replaced", {"thresholds": [0.25], "forecast_days": 0}) in kept
    text = seeded.ledger.get("/v1/audit-events?order=oldest&limit=200", "admin").text
    assert receiver["secret"] not in text
    assert "token=hidden" not in text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"thresholds": [0.8, 0.5]},
        {"thresholds": [0.5, 0.5]},
        {"thresholds": [0]},
        {"thresholds": [10.5]},
        {"thresholds": [n / 20 for n in range(1, 12)]},
        {"thresholds": ["0.5"]},
        {"thresholds": [True]},
        {"thresholds": 0.5},
        {"thresholds": [0.5], "forecast_days": -1},
        {"thresholds": [0.5], "forecast_days": 3651},
        {"thresholds": [0.5], "days": 3},
    ],
)
def test_settings_that_mean_nothing_are_refused(shared: SeededLedger, body: object) -> None:
    before = shared.rows()
    reply = put(shared.ledger, shared.budget, body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert shared.rows() == before


def test_settings_hold_for_the_next_charge_and_tell_what_is_reached_already(seeded: SeededLedger) -> None:
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


def test_a_key_of_a_sub_tree_sees_what_lies_in_it(seeded: SeededLedger) -> None:
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


def test_a_limit_that_is_lowered_tells_the_thresholds_that_it_crosses(seeded: SeededLedger) -> None:
    ledger, account = seeded.ledger, f"/v1/alerts?account={seeded.budget}&type=account.threshold_reached"
    epsilon = ledger.get(f"/v1/budgets/{seeded.budget}").json()["epsilon"]
    before = {item["data"]["threshold"] for item in ledger.get(account).json()["items"]}
    assert put(ledger, seeded.budget, {"thresholds": [0.5, 0.95]}).status_code == 200
    smaller = round(epsilon / 0.97, 3)
    body = {"limit": {"epsilon": smaller, "delta": 1e-5}, "reason": "The study is smaller."}
    reply = ledger.post(f"/v1/accounts/{seeded.budget}/limit", body, If_Match="*")
    assert reply.status_code == 200, reply.text
    [answer] = [item["data"] for item in ledger.get(account).json()["items"] if item["data"]["threshold"] not in before]
    assert (before, answer["threshold"], answer["epsilon_limit"]) == ({0.5, 0.8}, 0.95, smaller)
