"""A file, a server, and the plan between them: what the commands use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.provisioning.changes import Plan
from app.provisioning.document import OrganisationDocument, document_schema, read_document
from app.provisioning.errors import ProvisioningError
from app.provisioning.executor import Executor, Outcome, Result
from app.provisioning.exporter import export_document
from app.provisioning.http_api import HttpApi
from app.provisioning.keys_file import KeysFile
from app.provisioning.planner import plan
from app.provisioning.rendering import outcome_facts, outcome_text, plan_facts, plan_text
from app.provisioning.state import State
from app.provisioning.state_reader import read_state, read_whole_state
from app.version import VERSION

__all__ = [
    "Outcome",
    "ProvisioningError",
    "Result",
    "Session",
    "document_schema",
    "export_server",
    "open_session",
    "outcome_facts",
    "outcome_text",
    "plan_facts",
    "plan_text",
]


@dataclass(frozen=True, slots=True)
class Session:
    """A plan with what it was made for."""

    api: HttpApi
    document: OrganisationDocument
    state: State
    plan: Plan

    def require_confirmed(self, *, confirm: bool) -> None:
        """Refuse to lower protection unless that is confirmed.

        Raises:
            ProvisioningError: a change lowers protection; nothing was sent.
        """
        if self.plan.loosening and not confirm:
            raise ProvisioningError(
                "These changes lower protection:",
                *(f"  {change.title}: {', '.join(change.loosens)}" for change in self.plan.loosening),
                "Nothing was changed. Give --confirm to accept them, or change the file.",
            )

    def apply(self, reason: str, keys_out: Path | None, report: Callable[[Outcome], None]) -> None:
        """Apply the plan; `report` is called with each outcome.

        Raises:
            ProvisioningError: the file of keys cannot be written, the server fails, or it was changed since the plan.
        """
        keys_file = None if keys_out is None else KeysFile(keys_out)
        try:
            executor = Executor(self.api, self.document, self.state, reason=reason, keys_file=keys_file, report=report)
            executor.apply(self.plan)
        finally:
            if keys_file is not None:
                keys_file.close()


@contextmanager
def open_session(content: bytes, name: str) -> Iterator[Session]:
    """Read a file and the server of the environment, and plan.

    Raises:
        ProvisioningError: the file is invalid, or the server cannot be read.
    """
    document = read_document(content, name)
    with _open_api() as api:
        with _known_form(api):
            state = read_state(api, document)
            planned = plan(document, state)
        yield Session(api, document, state, planned)


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
