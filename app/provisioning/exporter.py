"""Write the state of a server as a file."""

from collections import Counter
from typing import Any

from app.provisioning.state import Account, State, format_time
from app.provisioning.yaml_text import write_yaml


def export_document(state: State) -> tuple[str, list[str]]:
    """Write a file that describes a state, such that its plan is empty.

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
