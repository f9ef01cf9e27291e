"""Send changes to a server, one after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from app.ledger.accounts.metadata import METADATA_MAPPINGS
from app.provisioning.changes import ORGANISATION, Change, ChangeSet, Operation, Resource, any_above
from app.provisioning.document import DesiredAccount, OrganisationDocument, accounts_of
from app.provisioning.errors import ProvisioningError
from app.provisioning.http_api import HttpApi, RefusalError, ServerError
from app.provisioning.keys_file import KeysFile
from app.provisioning.state import State, server_metadata


class Result(StrEnum):
    """The result of a change."""

    DONE = "done"
    PROPOSED = "proposed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change with its result; `detail` is the proposal or the reason."""

    change: Change
    result: Result
    detail: str | None = None


class StateChangedError(ProvisioningError):
    """The server was changed since it was read."""


class Executor:
    """Applies a set of changes.

    Args:
        api: of the server.
        document: that the changes were found for.
        state: that the changes were found for.
        reason: for the audit log.
        keys_file: gets the secrets of new API keys; None: keys are not created.
        report: is called with each outcome at once.
    """

    def __init__(
        self,
        api: HttpApi,
        document: OrganisationDocument,
        state: State,
        *,
        reason: str,
        keys_file: KeysFile | None,
        report: Callable[[Outcome], None],
    ) -> None:
        self._api, self._reason, self._keys_file, self._report = api, reason, keys_file, report
        self._desired: dict[str, DesiredAccount] = {each.path: each for each in accounts_of(document)}
        self._ids = {path: account.id for path, account in state.accounts.items()}
        self._blocked: dict[str, str] = {}  # paths where a change failed or waits, with the reason

    def apply(self, changes: ChangeSet) -> list[Outcome]:
        """Apply all changes; after a refusal, leave out what is under that account and go on.

        Raises:
            ProvisioningError: the server fails, or was changed since; what was reported before is done.
        """
        outcomes = []
        for change in changes.pending:
            outcome = self._outcome(change)
            self._report(outcome)
            outcomes.append(outcome)
        return outcomes

    def _outcome(self, change: Change) -> Outcome:
        is_key = change.resource is Resource.API_KEY
        place = change.after.get("scope") or ORGANISATION if is_key else change.path
        if any_above(place, self._blocked):
            why = next(why for path, why in self._blocked.items() if any_above(place, [path]))
            return Outcome(change, Result.SKIPPED, why)
        if is_key and change.after and self._keys_file is None:
            return Outcome(change, Result.SKIPPED, "give --keys-out FILE, which gets the secret")
        try:
            proposal = _SEND[change.resource](self, change)
        except RefusalError as error:
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                raise _changed(change) from None
            if not is_key:
                self._blocked[change.path] = f"{change.title} failed"
            return Outcome(change, Result.FAILED, str(error))
        if proposal is None:
            return Outcome(change, Result.DONE)
        if change.resource is Resource.POPULATION:
            self._blocked[change.path] = f"until another person approves {proposal}"
        return Outcome(change, Result.PROPOSED, proposal)

    def _create_account(self, change: Change) -> str | None:
        desired = self._desired[change.path]
        body = desired.document.model_dump(
            mode="json", exclude_unset=True, exclude={"alert_settings", "policy", "budgets"}
        )
        if desired.parent is None:
            status, reply = self._api.post("populations", body)
        else:
            status, reply = self._api.post("budgets", body | {"parent": self._ids[desired.parent]})
        if status == HTTPStatus.ACCEPTED:
            return str(reply["id"])
        self._ids[change.path] = reply["id"]
        return None

    def _replace_setting(self, change: Change) -> str | None:
        name = str(change.resource)
        path = f"accounts/{self._ids[change.path]}/{name}" if change.path else name
        etag = change.etag
        if etag is None:  # of an account that did not exist when the server was read
            present, etag = self._api.get(path)
            if present[name]:
                raise _changed(change)
        body = {name: change.after, "reason": self._reason}
        if change.resource is Resource.LIMIT:
            status, reply = self._api.post(path, body, etag=etag)
        else:
            status, reply = self._api.change("PUT", path, body, etag=etag)
        return str(reply["id"]) if status == HTTPStatus.CREATED else None

    def _replace_alert_settings(self, change: Change) -> None:
        path = f"accounts/{self._ids[change.path]}/alert-settings"
        if change.operation is Operation.UPDATE and self._api.get(path)[0] != change.before:
            raise _changed(change)  # alert settings take no If-Match
        self._api.change("PUT", path, change.after)

    def _update_metadata(self, change: Change) -> None:
        path = f"{'budgets' if '/' in change.path else 'populations'}/{self._ids[change.path]}"
        present, before = server_metadata(self._api.get(path)[0]), change.before or {}
        if any(present.get(name) != value for name, value in before.items()):
            raise _changed(change)  # metadata takes no If-Match
        patch = dict(change.after)
        for name in METADATA_MAPPINGS & patch.keys():  # they are merged by key
            patch[name] = dict.fromkeys(before[name] or {}) | (patch[name] or {})
        self._api.change("PATCH", path, patch)

    def _create_key(self, change: Change) -> None:
        for key in change.revokes:  # before, since valid keys have different names
            self._api.change("POST", f"api-keys/{key}/revoke", {"reason": self._reason})
        if change.after:
            assert self._keys_file is not None, "the change is skipped without"
            scope = change.after["scope"]
            body = dict(change.after) | {"name": change.path, "scope": self._ids.get(scope, scope)}
            try:
                created = self._api.post_for_secret("api-keys", body)
            except ServerError as error:
                raise ServerError(
                    f"{error} The API key {change.path} may exist now without anybody knowing its secret: revoke it if "
                    "the list of keys has it, and apply the file again."
                ) from None
            self._keys_file.write(created)


def _changed(change: Change) -> StateChangedError:
    return StateChangedError(
        f"The {change.title} was changed on the server since it was read. Run the command again and look at the "
        "changes."
    )


_SEND: dict[Resource, Callable[[Executor, Change], str | None]] = {
    Resource.POPULATION: Executor._create_account,  # noqa: SLF001 - the table of this class
    Resource.BUDGET: Executor._create_account,  # noqa: SLF001 - as above
    Resource.LIMIT: Executor._replace_setting,  # noqa: SLF001 - as above
    Resource.POLICY: Executor._replace_setting,  # noqa: SLF001 - as above
    Resource.ALERT_SETTINGS: Executor._replace_alert_settings,  # noqa: SLF001 - as above
    Resource.METADATA: Executor._update_metadata,  # noqa: SLF001 - as above
    Resource.API_KEY: Executor._create_key,  # noqa: SLF001 - as above
}
