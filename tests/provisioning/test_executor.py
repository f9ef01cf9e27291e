"""What is left when a server fails at the worst moment, and answers of servers of other versions."""

import json
from pathlib import Path

import httpx2
import pytest

from app.provisioning import session
from app.provisioning.changes import ChangeSet
from app.provisioning.errors import ProvisioningError
from app.provisioning.http_api import HttpApi
from app.provisioning.rendering import changes_text
from tests.provisioning.organisation import EMPTY, apply_changes, document

KEY = {"id": "key_1", "name": "a", "key": "key_1.s", "role": "viewer", "scope": None, "expires_at": None}


def _apply(folder: Path, error: Exception | None = None) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if error is not None and json.loads(request.content)["name"] == "b":
            raise error
        return httpx2.Response(201, json=KEY)

    described = document(api_keys=[{"name": "a", "role": "viewer"}, {"name": "b", "role": "viewer"}])
    api = HttpApi("http://ledger.example", "key_0.s", httpx2.MockTransport(answer))
    apply_changes(api, described, EMPTY, folder / "keys")


def test_lost_secret_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ProvisioningError, match="The API key b may exist now without anybody knowing its secret"):
        _apply(tmp_path, httpx2.ReadError("lost"))
    assert json.loads((tmp_path / "keys").read_text()) == KEY


def test_secret_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.provisioning.keys_file.os.fsync", full)
    with pytest.raises(ProvisioningError, match="key_1 was created, but its secret could not be written: No space"):
        _apply(tmp_path)


@pytest.mark.parametrize(
    "answer", [{"items": [], "next": None, "policy": {"tomorrow": 1}}, {"items": [{}], "next": None, "policy": {}}, []]
)
def test_answer_of_another_version_is_refused(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    api = HttpApi("http://ledger.example", "k", httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer)))
    monkeypatch.setattr(HttpApi, "from_environment", lambda: api)
    content = b"version: 1\npolicy: {max_epsilon: 1}\n"
    with (
        pytest.raises(ProvisioningError, match=r"in a form that version .* does not know"),
        session.open_session(content, "organisation.yaml"),
    ):
        raise AssertionError


def test_names_of_a_server_cannot_control_the_terminal() -> None:
    assert changes_text(ChangeSet((), unmanaged=("mimic\x1b[2J",))).count("\x1b") == 0
