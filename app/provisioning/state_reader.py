"""Read the state of an organisation from a server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.provisioning.document import DesiredAccount, OrganisationDocument, accounts_of
from app.provisioning.http_api import HttpApi, RefusalError
from app.provisioning.state import (
    Account,
    ApiKey,
    Proposal,
    State,
    Versioned,
    parse_time,
    server_metadata,
    server_terms,
)


def read_state(api: HttpApi, document: OrganisationDocument) -> State:
    """Read what a file is compared with: settings only of the accounts whose settings the file states."""
    described = {account.path: account for account in accounts_of(document)}
    listed = _list_accounts(api, archived="true") | _list_accounts(api)
    accounts = {path: _read_account(api, found, described.get(path)) for path, found in listed.items()}
    keys = None if document.api_keys is None else _read_keys(api, accounts)
    open_proposals = api.items("proposals", status="open")
    proposals = [Proposal(each["id"], each["kind"], each["account"], each["proposed"]) for each in open_proposals]
    return State(
        policy=_read_policy(api, "policy"),
        accounts=accounts,
        now=datetime.now(UTC),
        proposals=tuple(proposals),
        api_keys=keys,
        caller=api.caller,
    )


def read_whole_state(api: HttpApi) -> State:
    """Read all that a file can describe; without permission to read API keys, `api_keys` is None."""
    accounts = {path: _read_account(api, found, None, whole=True) for path, found in _list_accounts(api).items()}
    try:
        keys = _read_keys(api, accounts)
    except RefusalError:
        keys = None
    return State(
        policy=_read_policy(api, "policy"), accounts=accounts, now=datetime.now(UTC), api_keys=keys, caller=api.caller
    )


def _list_accounts(api: HttpApi, **query: str) -> dict[str, Mapping[str, Any]]:
    """List populations and budgets by path, oldest first."""
    found = [*api.items("budgets", **query), *api.items("populations", **query)]
    return {account["path"]: account for account in reversed(found)}


def _read_account(
    api: HttpApi, found: Mapping[str, Any], desired: DesiredAccount | None, *, whole: bool = False
) -> Account:
    account_id, limit = found["id"], Versioned(found["limit"])
    document = None if desired is None else desired.document
    if document is not None and document.limit.domain().facts() != limit.value:
        read, etag = api.get(f"accounts/{account_id}/limit")
        limit = Versioned(read["limit"], etag)
    policy = alerts = None
    if whole or (document is not None and document.policy is not None):
        policy = _read_policy(api, f"accounts/{account_id}/policy")
    if whole or (document is not None and document.alert_settings is not None):
        alerts, _ = api.get(f"accounts/{account_id}/alert-settings")
    return Account(
        *(account_id, found["path"], server_terms(found), limit, policy, alerts),
        metadata=server_metadata(found),
        is_archived=found["archived_at"] is not None,
    )


def _read_policy(api: HttpApi, path: str) -> Versioned:
    read, etag = api.get(path)
    return Versioned(read["policy"], etag)


def _read_keys(api: HttpApi, accounts: Mapping[str, Account]) -> tuple[ApiKey, ...]:
    """Read the valid API keys, with paths as scopes."""
    paths, now = {account.id: path for path, account in accounts.items()}, datetime.now(UTC)
    found = []
    for each in api.items("api-keys"):
        expires_at = parse_time(each["expires_at"])
        if each["revoked_at"] is None and (expires_at is None or expires_at > now):
            scope = paths.get(each["scope"], each["scope"])
            found.append(ApiKey(each["id"], each["name"], each["role"], scope, expires_at))
    return tuple(found)
