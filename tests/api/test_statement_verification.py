"""A page of a statement holds the signed document and a script without Python; both ways tell a forged one apart."""

import json
import re
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from app.ledger.audit import canonical
from tests.api.conftest import SeededLedger
from tests.conftest import open_ledger, signing_key
from tests.forged_documents import forged_documents
from tests.ledgers import new_signing_key
from tests.service.cli_runner import Run, commands

STRANGE = 'Zürich, "ICU", 東京 \\ ","signature":{"algorithm":"Ed25519"}'


@pytest.fixture
def saved(seeded: SeededLedger, tmp_path: Path) -> Path:
    """What a reader saves from the page: statement.json and verify_statement.sh."""
    assert seeded.ledger.patch(f"/v1/populations/{seeded.population}", {"description": STRANGE}).is_success
    assert seeded.steps().status_code == 200
    text = seeded.ledger.get(f"/v1/runs/{seeded.run}/statement.html").text
    for name, data in re.findall(r'<a download="([^"]+)" href="data:[a-z-]+/[a-z-]+;base64,([^"]+)">', text):
        (tmp_path / name).write_bytes(b64decode(data))
    assert (tmp_path / "statement.json").exists()
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saved: Path) -> Run:
    """The command line, on a machine without a ledger."""
    monkeypatch.chdir(saved)
    return commands(monkeypatch, capsys, "sqlite:////nowhere/at-all.db")


def by_script(folder: Path, file: str | Path = "statement.json", key: str | Path | None = None) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "verify_statement.sh", file, key or signing_key()[1]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def forged(document: dict[str, Any]) -> dict[str, str]:
    """Forgeries with white space, in the form that the ledger writes, and with lines before and after."""
    spaced, whole = forged_documents(document), canonical(document)
    tight = {f"{name}, tight": re.sub(r'(?<=[":,}])\s(?=["{])', "", text) for name, text in spaced.items()}
    changed = {"a number": whole.replace('"steps":2', '"steps":3'), "a line after": f"{whole}\nforged"}
    return spaced | tight | changed | {"a line before": f"forged\n{whole}", "two": f"{whole}\n{whole}", "empty": ""}


def test_script_verifies_what_the_page_holds(saved: Path, seeded: SeededLedger, tmp_path: Path) -> None:
    document = json.loads((saved / "statement.json").read_text())
    status, said = by_script(saved)
    assert status == 0, said
    assert said.startswith(f"Sound: signed by the key {document['signature']['key_id']}. This was signed:\n{{")
    assert json.loads(said[said.index("{") :]) == document["payload"]
    answer = tmp_path / "answer.json"
    answer.write_bytes(seeded.ledger.get(f"/v1/populations/{seeded.population}/statement").content + b"\n")
    assert by_script(saved, answer)[0] == 0
    another = new_signing_key(tmp_path)[1]
    assert by_script(saved, key=another)[0] == 1
    for arguments in ((saved / "nothing.json",), ("statement.json", "statement.json")):
        assert by_script(saved, *arguments)[0] == 2


def test_script_takes_no_forgery_for_sound(saved: Path) -> None:
    document = json.loads((saved / "statement.json").read_text())
    for name, text in forged(document).items():
        (saved / "forged.json").write_text(text)
        status, said = by_script(saved, "forged.json")
        assert (status, "Sound:" in said, "NOT SOUND: " in said) == (1, False, True), name


def test_command_verifies_a_statement_without_a_ledger(run: Run, saved: Path, seeded: SeededLedger) -> None:
    document = json.loads((saved / "statement.json").read_text())
    key = str(signing_key()[1])
    said = run("verify-statement", "statement.json", "--public-key", key)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("Sound: run_statement of 'hospital', org_")
    assert f", about 'mimic/icu-team/model', {seeded.run}, epsilon " in said.out
    told = json.loads(run("verify-statement", "statement.json", "--public-key", key, "--json").out)
    assert told == {"sound": True, "payload": document["payload"]}
    (saved / "forged.json").write_text(canonical(document).replace('"steps":2', '"steps":3'))
    said = run("verify-statement", "forged.json", "--public-key", key)
    assert (said.status, said.out) == (1, "NOT SOUND: forged.json is not signed by this key, or was changed since.\n")
    checkpoint = seeded.ledger.post("/v1/checkpoints", None, "auditor")
    (saved / "checkpoint.json").write_bytes(checkpoint.content)
    for file, reason in (
        ("checkpoint.json", "This is a signed 'checkpoint', and no statement."),
        ("nothing.json", "cannot be read"),
        ("verify_statement.sh", "cannot be read"),
    ):
        said = run("verify-statement", file, "--public-key", key)
        assert (said.status, reason in said.err) == (2, True), said


def test_issuer_is_the_configured_address_and_not_the_host_of_a_request(seeded: SeededLedger) -> None:
    path = f"/v1/runs/{seeded.run}/statement"
    assert seeded.ledger.get(path, Host="forged.example").json()["payload"]["issuer"] == {"url": None}
    page = seeded.ledger.get(f"{path}.html").text
    assert f'href="/runs/{seeded.run}"' in page
    assert "an address that its operator has not set" in page


def test_issuer_s_address_is_signed_and_links_back(tmp_path: Path) -> None:
    url = "https://ledger.hospital.example"
    with open_ledger(tmp_path, public_url=url, signing_key_file=str(signing_key()[0])) as ledger:
        population = ledger.population()["id"]
        path = f"/v1/populations/{population}/statement"
        assert ledger.get(path).json()["payload"]["issuer"] == {"url": url}
        page = ledger.get(f"{path}.html").text
    assert f'href="https://ledger.hospital.example/accounts/{population}"' in page
    assert "Epsilon Ledger at https://ledger.hospital.example" in page
