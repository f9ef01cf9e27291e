"""Files of organisations, and organisations of a real application in this process that they are applied to."""

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.ledger.permissions import Role
from app.provisioning.change_finder import find_changes
from app.provisioning.changes import ChangeSet
from app.provisioning.document import OrganisationDocument
from app.provisioning.executor import Executor, Outcome
from app.provisioning.http_api import HttpApi
from app.provisioning.keys_file import KeysFile
from app.provisioning.state import State, Versioned
from app.provisioning.state_reader import read_state
from app.service.keys.api_keys import create_key
from tests.ledgers import Ledger

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
EMPTY = State(policy=Versioned({}, '"org-policy-0"'), accounts={}, now=NOW, api_keys=())


def document(**members: Any) -> OrganisationDocument:  # noqa: ANN401 - members of a file
    return OrganisationDocument.model_validate({"version": 1} | members)


def population(name: str = "mimic", **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    return {"name": name, "limit": {"epsilon": 8.0, "delta": 1e-5}} | unit | members


def budget(name: str, epsilon: float = 3.0, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    return {"name": name, "limit": {"epsilon": epsilon, "delta": 1e-5}} | members


def apply_changes(api: HttpApi, described: OrganisationDocument, state: State, keys: Path) -> list[Outcome]:
    """Apply a file to a server in this state, and write the secrets of new keys."""
    with closing(KeysFile(keys)) as keys_file:
        how: dict[str, Any] = {"reason": "A test.", "keys_file": keys_file, "report": lambda _: None}
        return Executor(api, described, state, **how).apply(find_changes(described, state))


@dataclass
class Organisation:
    """An organisation of an application in this process, with a folder for secrets of keys, and keys by role."""

    ledger: Ledger
    folder: Path
    name: str
    keys: dict[str, str]

    def key(self, role: str) -> str:
        if role not in self.keys:
            now = datetime.now(UTC)
            self.keys[role] = create_key(self.ledger.database, self.name, Role(role), now).key
        return self.keys[role]

    def api(self, role: str = "admin", key: str = "") -> HttpApi:
        """The API as a key of this role has it, or another key."""
        return HttpApi("http://testserver", key or self.key(role), self.ledger.http._transport)

    def state(self, described: OrganisationDocument) -> State:
        return read_state(self.api(), described)

    def changes(self, described: OrganisationDocument) -> ChangeSet:
        return find_changes(described, self.state(described))

    def apply(self, described: OrganisationDocument) -> list[Outcome]:
        """Apply a file; what needs an approval is proposed."""
        return apply_changes(self.api(), described, self.state(described), self.folder / "keys")

    def approve_all(self) -> None:
        officer = self.api("privacy_officer")
        for proposal in list(officer.items("proposals", status="open")):
            officer.post(f"proposals/{proposal['id']}/approve", {})

    def settle(self, described: OrganisationDocument) -> None:
        """Apply a file until nothing is left, everything being approved."""
        for _ in range(2):
            self.apply(described)
            self.approve_all()
        found = self.changes(described)
        assert not found.changes, found
        assert not found.conflicts, found
