"""Signatures and hash chains, verified by Node without any Python: what is sound, and each kind of change."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.ledger.accounts.alerts import Alert, AlertType
from app.service.alerts.webhook_signatures import message, new_secret, signed_headers
from app.service.audit.export import export
from tests.conftest import open_ledger, signing_key
from tests.forged_documents import forged_documents

SCRIPT = Path(__file__).parents[2] / "examples" / "verify.mjs"
NOW = datetime(2026, 12, 2, tzinfo=UTC)
STRANGE = 'Zürich, “ICU”, 東京, 🜁 \\ "x"'
"""Characters that serializers write differently."""


class Written(NamedTuple):
    """What a ledger gave to its auditors."""

    lines: list[str]
    events: list[dict[str, Any]]
    organisation: str
    statement: dict[str, Any]
    checkpoint: dict[str, Any]


def verified(*words: str | Path) -> tuple[int, str]:
    done = subprocess.run(["node", SCRIPT, *words], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with open_ledger(tmp_path_factory.mktemp("ledger"), signing_key_file=str(signing_key()[0])) as ledger:
        ledger.population(description=STRANGE, limit={"epsilon": 1e4, "delta": 1e-7})
        ledger.budget(limit={"epsilon": 1e-4, "delta": 1e-5}, description=STRANGE)
        ledger.budget("large", limit={"epsilon": 30.0, "delta": 1e-5})
        run = ledger.run("mimic/large", event={"type": "gaussian", "noise_multiplier": 60.0})
        for body in ({"count": 4}, {"count": 10**6}, {}):
            ledger.post(f"/v1/runs/{run}/steps", body, "trainer")
        statement = ledger.get(f"/v1/runs/{run}/statement")
        checkpoint = ledger.post("/v1/checkpoints", None, "auditor")
        events = ledger.get("/v1/audit-events?order=oldest&limit=200", "auditor").json()
        assert events["next"] is None
        lines = list(export(ledger.database, NOW, population="mimic"))
        organisation = json.loads(lines[0])["organisation"]
        yield Written(lines, events["items"], organisation, statement.json(), checkpoint.json())


def test_export_is_sound(written: Written, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text("".join(f"{line}\n" for line in written.lines))
    status, said = verified("export", file)
    assert status == 0, said
    events = sum(json.loads(line)["type"] == "audit_event" for line in written.lines)
    assert said == f"Sound: 3 decisions of 1 runs, and {events} audit events.\n"
    assert any("Zürich" in line and "東京" in line for line in written.lines)  # as UTF-8, and not escaped


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("decision", lambda line: line.replace('"step_count":4', '"step_count":3'), "is that of another entry"),
        ("decision", lambda line: line.replace('"attempt":1', '"attempt":1,"attempt":1'), "is that of another entry"),
        ("decision", lambda line: line.replace('"entry":{', '"entry": {'), "is that of another entry"),
        ("decision", lambda line: line.replace('"type":', '"type": '), "is not as it was written"),
        ("decision", lambda _: None, "is missing"),
        ("audit_event", lambda line: line.replace('"reason":null', '"reason":"x"'), "is that of another entry"),
        ("audit_event", lambda _: None, "is missing"),
        ("run", lambda line: line.replace('"id":', '"id":"run_x","id":'), 'the member "id" is given twice'),
        ("event", lambda line: line.replace("60.0", "61.0"), "it is another one"),
        ("end", lambda _: None, "lines are missing"),
        ("last decision", lambda _: None, ""),
    ],
)
def test_change_of_export_is_found(
    written: Written, tmp_path: Path, kind: str, change: Callable[[str], str | None], reason: str
) -> None:
    kinds = [json.loads(line)["type"] for line in written.lines]
    last = kind.startswith("last ")
    place = len(kinds) - 1 - kinds[::-1].index(kind[5:]) if last else kinds.index(kind)
    changed = change(written.lines[place])
    assert changed != written.lines[place]
    lines = [*written.lines[:place], *([] if changed is None else [changed]), *written.lines[place + 1 :]]
    if last:  # a cut chain, whose end counts its lines
        lines[-1] = json.dumps({"type": "end", "lines": len(lines) - 1})
    file = tmp_path / "export.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    status, said = verified("export", file)
    assert (status, reason in said) == (1, True), said


def test_audit_log_of_api_is_sound_and_each_change_of_it_is_found(written: Written, tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    file.write_text(json.dumps({"items": written.events, "next": None}))
    status, said = verified("audit-log", file, written.organisation)
    assert status == 0, said
    assert f"Sound: {len(written.events)} audit events, head {written.events[-1]['hash']}." in said
    assert verified("audit-log", file, "org_000000000000000")[0] == 1
    changes = {"actor": "key_x", "reason": "x", "created_at": "2026-01-01T00:00:00Z", "after": {"a": 1}}
    for name, value in changes.items():
        events = [dict(event) for event in written.events]
        events[1][name] = value
        file.write_text(json.dumps(events))
        assert verified("audit-log", file, written.organisation)[0] == 1, name


def test_signed_document_is_verified(written: Written, tmp_path: Path) -> None:
    file, (_, public) = tmp_path / "document.json", signing_key()
    loss, run = (written.statement["payload"][name] for name in ("loss", "run"))
    about = f'"mimic/large/model", {run["id"]}, epsilon {loss["epsilon"]} of 30 at delta 0.00001'
    for document, signed in ((written.statement, about), (written.checkpoint, " audit events, head ")):
        file.write_text(json.dumps(document))  # as another program wrote it: with spaces, and in ASCII
        status, said = verified("document", file, public)
        assert status == 0, said
        payload, key_id = document["payload"], document["signature"]["key_id"]
        assert said.startswith(f"Sound: signed by the key {key_id}: {payload['type']} of {written.organisation} about ")
        assert signed in said
        assert said.endswith(f", on {payload.get('issued_at') or payload['created_at']}.\n")


def test_document_with_something_that_is_not_signed_is_not_sound(written: Written, tmp_path: Path) -> None:
    file, (_, public) = tmp_path / "document.json", signing_key()
    for name, text in forged_documents(written.checkpoint).items():
        file.write_text(text)
        status, said = verified("document", file, public)
        assert (status, said.startswith("NOT SOUND: "), said.count("\n")) == (1, True, 1), (name, said)


def test_webhook_is_verified(tmp_path: Path) -> None:
    secret, now = new_secret(), int(time.time())
    body = message(Alert("evt_1", AlertType.THRESHOLD, "bud_1", "0.5", {"account_path": STRANGE}, NOW))
    headers, content = tmp_path / "headers.json", tmp_path / "body.json"

    def checked(at: int, sent: bytes, used: str = secret) -> tuple[int, str]:
        signed = signed_headers([new_secret(), secret], "evt_1", at, body)
        headers.write_text(json.dumps({name.title(): value for name, value in signed.items()}))
        content.write_bytes(sent)
        return verified("webhook", used, headers, content)

    assert checked(now, body) == (0, "Sound: webhook evt_1.\n")
    assert checked(now, body + b" ") == (1, "NOT SOUND: no signature of the webhook is right.\n")
    assert checked(now, body, new_secret())[0] == 1
    assert checked(now - 400, body) == (1, "NOT SOUND: the webhook is too old, or of the future.\n")


def test_unreadable_file_is_not_called_unsound(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("no JSON")
    for words in (["export", file], ["document", file, file], ["export"], ["prove", file], []):
        assert verified(*words)[0] == 2
