"""Files of organisations, and organisations of a real application in this process that they are applied to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from app.ledger.permissions import Role
from app.provisioning.changes import Plan
from app.provisioning.document import OrganisationDocument
from app.provisioning.executor import Executor, Outcome
from app.provisioning.http_api import HttpApi
from app.provisioning.keys_file import KeysFile
from app.provisioning.planner import plan
from app.provisioning.state import State, Versioned
from app.provisioning.state_reader import read_state
from app.service.auth import authentication
from app.service.governance.api_keys import create_key
from tests.ledgers import Ledger, open_ledger

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
EMPTY = State(policy=Versioned({}, '"org-policy-0"'), accounts={}, now=NOW, api_keys=())
NUMBERS = count(1)
ROUNDS = 4


def document(**members: Any) -> OrganisationDocument:  # noqa: ANN401 - members of a file
    return OrganisationDocument.model_validate({"version": 1} | members)


def population(name: str = "mimic", **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    return {"name": name, "limit": {"epsilon": 8.0, "delta": 1e-5}} | unit | members


def budget(name: str, epsilon: float = 3.0, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    return {"name": name, "limit": {"epsilon": epsilon, "delta": 1e-5}} | members


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

    def plan(self, described: OrganisationDocument) -> Plan:
        return plan(described, self.state(described))

    def apply(self, described: OrganisationDocument) -> list[Outcome]:
        """Apply a file; what needs an approval is proposed."""
        state, keys_file = self.state(described), KeysFile(self.folder / "keys")
        try:
            executor = Executor(
                self.api(), described, state, reason="A test.", keys_file=keys_file, report=lambda _: None
            )
            return executor.apply(plan(described, state))
        finally:
            keys_file.close()

    def approve_all(self) -> None:
        officer = self.api("privacy_officer")
        for proposal in list(officer.items("proposals", status="open")):
            officer.post(f"proposals/{proposal['id']}/approve", {})

    def settle(self, described: OrganisationDocument) -> "Organisation":
        """Apply a file until nothing is left, everything being approved."""
        for _ in range(ROUNDS):
            planned = self.plan(described)
            assert not planned.conflicts, planned.conflicts
            if not planned.changes:
                return self
            self.apply(described)
            self.approve_all()
        raise AssertionError(self.plan(described))


@contextmanager
def application(folder: Path) -> Iterator[Callable[[], Organisation]]:
    """An application, and what makes new organisations of it."""
    with open_ledger(folder) as ledger:

        def new() -> Organisation:
            name = f"hospital {next(NUMBERS)}"
            authentication.create_organisation(ledger.database, name, datetime.now(UTC))
            return Organisation(ledger, folder, name, {})

        yield new
