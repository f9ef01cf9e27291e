"""A file, a server, and the changes between them: what the commands use."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.provisioning.change_finder import find_changes
from app.provisioning.changes import ChangeSet
from app.provisioning.document import OrganisationDocument, document_schema, read_document
from app.provisioning.errors import ProvisioningError
from app.provisioning.executor import Executor, Outcome, Result
from app.provisioning.http_api import HttpApi
from app.provisioning.keys_file import KeysFile
from app.provisioning.rendering import changes_facts, changes_text, outcome_facts, outcome_text
from app.provisioning.state import Account, State, format_time
from app.provisioning.state_reader import read_state, read_whole_state
from app.provisioning.yaml_text import write_yaml
from app.version import VERSION

__all__ = [
    "Outcome",
    "ProvisioningError",
    "Result",
    "Session",
    "changes_facts",
    "changes_text",
    "document_schema",
    "export_server",
    "open_session",
    "outcome_facts",
    "outcome_text",
]


@dataclass(frozen=True, slots=True)
class Session:
    """Changes with what they were found for."""

    api: HttpApi
    document: OrganisationDocument
    state: State
    changes: ChangeSet

    def require_confirmed(self, *, confirm: bool) -> None:
        """Refuse to lower protection unless that is confirmed.

        Raises:
            ProvisioningError: a change lowers protection; nothing was sent.
        """
        if self.changes.loosening and not confirm:
            raise ProvisioningError(
                "These changes lower protection:",
                *(f"  {change.title}: {', '.join(change.loosens)}" for change in self.changes.loosening),
                "Nothing was changed. Give --confirm to accept them, or change the file.",
            )

    def apply(self, reason: str, keys_out: Path | None, report: Callable[[Outcome], None]) -> None:
        """Apply the changes; `report` is called with each outcome.

        Raises:
            ProvisioningError: the file of keys cannot be written, the server fails, or it was changed meanwhile.
        """
        keys_file = None if keys_out is None else KeysFile(keys_out)
        try:
            executor = Executor(self.api, self.document, self.state, reason=reason, keys_file=keys_file, report=report)
            executor.apply(self.changes)
        finally:
            if keys_file is not None:
                keys_file.close()


@contextmanager
def open_session(content: bytes, name: str) -> Iterator[Session]:
    """Read a file and the server of the environment, and compare them.

    Raises:
        ProvisioningError: the file is invalid, or the server cannot be read.
    """
    document = read_document(content, name)
    with _open_api() as api:
        with _known_form(api):
            state = read_state(api, document)
            changes = find_changes(document, state)
        yield Session(api, document, state, changes)


def export_server() -> tuple[str, list[str]]:
    """Write the state of the environment's server as a file, with notes about what it leaves out."""
    with _open_api() as api, _known_form(api):
        return export_document(read_whole_state(api))


@contextmanager
def _open_api() -> Iterator[HttpApi]:
    api = HttpApi.from_environment()
    try:
        yield api
    finally:
        api.close()


@contextmanager
def _known_form(api: HttpApi) -> Iterator[None]:
    """Refuse answers that are not of this version's API."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ProvisioningError(
            f"{api.url} answers in a form that version {VERSION} of this command does not know "
            f"({type(error).__name__}: {error}). Use the version of the server."
        ) from None


def export_document(state: State) -> tuple[str, list[str]]:
    """Write a file that describes a state, such that applying it changes nothing.

    Returns:
        The YAML text, and notes about what it leaves out.
    """
    notes: list[str] = []
    document: dict[str, Any] = {"version": 1, "policy": dict(state.policy.value)}
    tops = [account for path, account in state.accounts.items() if "/" not in path]
    document["populations"] = [_entry(account, state) for account in tops]
    rootless = [path for path in state.accounts if "/" in path and path.rpartition("/")[0] not in state.accounts]
    if rootless:
        notes.append(f"The API key reads no account above {', '.join(rootless)}; they are left out.")
    if state.api_keys is None:
        notes.append("API keys are left out: they need the permission keys:manage.")
    else:
        document["api_keys"] = _keys(state, notes)
    return write_yaml(document), notes


def _entry(account: Account, state: State) -> dict[str, Any]:
    found: dict[str, Any] = {"name": account.path.rpartition("/")[2], **account.metadata, **account.terms}
    found["limit"] = dict(account.limit.value)
    if account.policy is not None and account.policy.value:
        found["policy"] = dict(account.policy.value)
    if account.alert_settings is not None:
        found["alert_settings"] = dict(account.alert_settings)
    for planned in found.get("planned", []):
        if planned["count"] is None:
            del planned["count"]
    children = [child for path, child in state.accounts.items() if path.rpartition("/")[0] == account.path]
    if children:
        found["budgets"] = [_entry(child, state) for child in children]
    return found


def _keys(state: State, notes: list[str]) -> list[dict[str, Any]]:
    """Describe the API keys whose names identify them."""
    keys = state.api_keys or ()
    terms = {key.id: {"role": key.role, "scope": key.scope, "expires_at": format_time(key.expires_at)} for key in keys}
    by_name = Counter(key.name for key in keys)
    found = []
    for key in sorted(keys, key=lambda key: key.name or ""):
        if key.name is None or by_name[key.name] > 1:
            why = "it has no name" if key.name is None else f"another valid key is called {key.name!r}, too"
            notes.append(f"The API key {key.id} is left out: {why}.")
        else:
            found.append(
                {"name": key.name} | {name: value for name, value in terms[key.id].items() if value is not None}
            )
    return found
