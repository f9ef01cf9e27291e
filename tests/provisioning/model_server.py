"""A server in memory, as far as plans know one: what its state is after a plan was applied."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.ledger.alerts import DEFAULT_ALERT_SETTINGS
from app.provisioning.changes import Change, Operation, Plan, Resource
from app.provisioning.document import OrganisationDocument, accounts_of
from app.provisioning.state import (
    Account,
    ApiKey,
    Proposal,
    State,
    Versioned,
    desired_metadata,
    desired_terms,
    parse_time,
)

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
DEFAULT_ALERTS = {
    "thresholds": list(DEFAULT_ALERT_SETTINGS.thresholds),
    "forecast_days": DEFAULT_ALERT_SETTINGS.forecast_days,
}
EMPTY = State(policy=Versioned({}, '"org-policy-0"'), accounts={}, now=NOW, api_keys=())


def document(**members: Any) -> OrganisationDocument:  # noqa: ANN401 - members of a file
    return OrganisationDocument.model_validate({"version": 1} | members)


def population(name: str = "mimic", **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    unit = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    return {"name": name, "limit": {"epsilon": 8.0, "delta": 1e-5}} | unit | members


def budget(name: str, epsilon: float = 3.0, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a file
    return {"name": name, "limit": {"epsilon": epsilon, "delta": 1e-5}} | members


def applied(described: OrganisationDocument, state: State, plan: Plan, *, approved: bool = True) -> State:
    """The state after a plan; what needs an approval is approved at once, or is proposed."""
    model = _Model(described, state, approved)
    for change in plan.pending:
        model.apply(change)
    return model.state


class _Model:
    def __init__(self, described: OrganisationDocument, state: State, approved: bool) -> None:  # noqa: FBT001
        self.state, self.approved = state, approved
        self.entries = {account.path: account.document for account in accounts_of(described)}

    def apply(self, change: Change) -> None:
        if change.resource is Resource.API_KEY:
            self._replace_key(change)
        elif change.resource in {Resource.POPULATION, Resource.BUDGET}:
            self._create(change)
        elif change.loosens and change.resource is not Resource.ALERT_SETTINGS and not self.approved:
            name = str(change.resource)
            account_id = self.state.accounts[change.path].id if change.path else None
            self._propose(name, account_id, {name: change.after, "revision": 0})
        elif not change.path:
            self.state = replace(self.state, policy=Versioned(change.after))
        else:
            changed: Any = Versioned(change.after)
            if change.resource is Resource.ALERT_SETTINGS:
                changed = change.after
            elif change.resource is Resource.METADATA:
                merged = {**self.state.accounts[change.path].metadata, **change.after}
                changed = {name: value for name, value in merged.items() if value}
            account: Account = replace(self.state.accounts[change.path], **{str(change.resource): changed})
            self.state = replace(self.state, accounts={**self.state.accounts, change.path: account})

    def _create(self, change: Change) -> None:
        assert change.path not in self.state.accounts
        parent = change.path.rpartition("/")[0]
        if change.note and not self.approved:
            self._propose("population", None, dict(change.after) | {"name": change.path})
            return
        assert not parent or parent in self.state.accounts, "a budget is created before its parent"
        entry = self.entries[change.path]
        account = Account(
            f"id_of_{change.path}",
            change.path,
            desired_terms(entry),
            Versioned(entry.limit.model_dump()),
            Versioned({}),
            DEFAULT_ALERTS,
            {name: value for name, value in desired_metadata(entry).items() if value},
        )
        self.state = replace(self.state, accounts={**self.state.accounts, change.path: account})

    def _propose(self, kind: str, account: str | None, proposed: dict[str, Any]) -> None:
        proposal = Proposal(f"prp_{len(self.state.proposals)}", kind, account, proposed)
        self.state = replace(self.state, proposals=(*self.state.proposals, proposal))

    def _replace_key(self, change: Change) -> None:
        keys = [key for key in self.state.api_keys or () if key.id not in change.revokes]
        if change.after:
            assert change.operation in {Operation.CREATE, Operation.REPLACE}
            facts = change.after
            ends = parse_time(facts["expires_at"])
            keys.append(ApiKey(f"key_{len(keys)}_{change.path}", change.path, facts["role"], facts["scope"], ends))
        self.state = replace(self.state, api_keys=tuple(keys))
