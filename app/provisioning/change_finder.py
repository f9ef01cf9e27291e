"""Compare a file with the state of a server: a pure function of both."""

from collections.abc import Iterator
from typing import Any, Final

from app.ledger.accounts.alerts import DEFAULT_ALERT_SETTINGS
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_raised
from app.ledger.settings.policies import EMPTY_POLICY, facts_of, loosened, policy_of
from app.ledger.settings.policy_rules import OPENERS
from app.provisioning.changes import ORGANISATION, Change, ChangeSet, Conflict, Operation, Resource
from app.provisioning.document import DesiredAccount, OrganisationDocument, PopulationDocument, accounts_of
from app.provisioning.key_changes import find_key_changes
from app.provisioning.state import TERMS, Account, Facts, Proposal, State, Versioned, desired_metadata, desired_terms

_DEFAULT_ALERTS: Final = {
    "thresholds": list(DEFAULT_ALERT_SETTINGS.thresholds),
    "forecast_days": DEFAULT_ALERT_SETTINGS.forecast_days,
}


def find_changes(document: OrganisationDocument, state: State) -> ChangeSet:
    """Find the changes that make a server as a file describes it.

    The organisation's policy comes first, so that it holds for what is created; then accounts, parents first, each
    with its limit, policy and alert settings; then API keys, whose scopes exist by then.
    """
    finder = _ChangeFinder(document, state)
    found = list(finder.all_changes())
    found += find_key_changes(document, state, finder.proposed)
    described = {account.path for account in accounts_of(document)}
    names = {key.name for key in document.api_keys or ()}
    unmanaged = [
        path for path, account in sorted(state.accounts.items()) if path not in described and not account.is_archived
    ]
    if document.api_keys is not None:
        unmanaged += [f"API key {key.name or key.id}" for key in state.api_keys or () if key.name not in names]
    return ChangeSet(
        tuple(item for item in found if isinstance(item, Change)),
        tuple(item for item in found if isinstance(item, Conflict)),
        tuple(unmanaged),
    )


class _ChangeFinder:
    """Finds the changes of an organisation's policy and accounts."""

    def __init__(self, document: OrganisationDocument, state: State) -> None:
        self._document, self._state = document, state
        self.proposed: dict[str, str] = {}
        """Populations that wait for an approval, each with the reason that is shown."""

    def all_changes(self) -> Iterator[Change | Conflict]:
        """Find all changes, in order."""
        if self._document.policy is not None:
            desired = facts_of(self._document.policy.domain())
            yield from self._policy(ORGANISATION, None, desired, self._state.policy)
        for account in accounts_of(self._document):
            yield from self._account(account)

    def _account(self, desired: DesiredAccount) -> Iterator[Change | Conflict]:
        present = self._state.accounts.get(desired.path)
        if present is None:
            yield from self._new_account(desired)
            return
        if present.is_archived:
            unarchive = f"unarchive it (POST /v1/accounts/{present.id}/unarchive), or remove it from the file"
            yield Conflict(desired.path, f"it is archived on the server: {unarchive}")
            return
        yield from _compare_terms(desired, present)
        yield from _metadata(desired, present)
        yield from self._limit(desired, present)
        if desired.document.policy is not None and present.policy is not None:
            policy = facts_of(desired.document.policy.domain())
            yield from self._policy(desired.path, present.id, policy, present.policy)
        if desired.document.alert_settings is not None and present.alert_settings is not None:
            yield from _alert_settings(desired, present.alert_settings)

    def _new_account(self, desired: DesiredAccount) -> Iterator[Change | Conflict]:
        """Create an account that is not there, and its settings."""
        root = desired.path.split("/", maxsplit=1)[0]
        note = None
        if desired.parent is None:
            yield from self._find_proposal(desired)
            if root not in self.proposed and self._approvers_of_populations() > OPENERS:
                note = "the policy requires that another person approves it"
        facts = desired_terms(desired.document) | {"limit": desired.document.limit.domain().facts()}
        facts |= {name: value for name, value in desired_metadata(desired.document).items() if value}
        yield self._created(Resource(desired.kind), desired.path, facts, note)
        if note is not None:
            self.proposed[root] = f"until another person approves the population {root}"
        policy = None if desired.document.policy is None else facts_of(desired.document.policy.domain())
        if policy:
            yield self._created(Resource.POLICY, desired.path, policy)
        if desired.document.alert_settings is not None:
            for change in _alert_settings(desired, _DEFAULT_ALERTS):
                yield self._created(Resource.ALERT_SETTINGS, desired.path, change.after)

    def _created(self, resource: Resource, path: str, after: Facts, note: str | None = None) -> Change:
        """Create an object, which waits if its population does."""
        waits = self.proposed.get(path.split("/", maxsplit=1)[0])
        return Change(Operation.WAIT if waits else Operation.CREATE, resource, path, after, reason=waits, note=note)

    def _find_proposal(self, desired: DesiredAccount) -> Iterator[Conflict]:
        """Look for an open proposal of a new population."""
        document = desired.document
        assert isinstance(document, PopulationDocument), "only populations have no parent"
        for proposal in self._open("population", None):
            if proposal.proposed.get("name") != document.name:
                continue
            self.proposed[desired.path] = _waits_for(proposal)
            terms = desired_terms(document) | {"limit": document.limit.domain().facts()}
            same = ("privacy_unit", "neighboring_relation", "size", "limit")
            if any(terms.get(name) != proposal.proposed.get(name) for name in same):
                yield Conflict(
                    desired.path, f"{proposal.id} proposes this population with other terms; have it decided first"
                )

    def _approvers_of_populations(self) -> int:
        """Return the number of persons to create a population once the planned policy holds."""
        before = policy_of(self._state.policy.value)
        after = EMPTY_POLICY if self._document.policy is None else self._document.policy.domain()
        if self._document.policy is None or loosened(before, after, of_organisation=True):
            after = before  # a looser one has to be approved first
        return after.approvers_to_create_population or OPENERS

    def _limit(self, desired: DesiredAccount, present: Account) -> Iterator[Change | Conflict]:
        before, after = dict(present.limit.value), desired.document.limit.domain().facts()
        if before == after:
            return
        loosens: tuple[str, ...] = ()
        if is_raised(Limit.of(before), Limit.of(after)):
            loosens = ("raises the limit",)
        changed = Change(
            *(Operation.UPDATE, Resource.LIMIT, desired.path, after, before, loosens, present.limit.etag),
            note="another person has to approve it, unless the policy lets one person raise limits"
            if loosens
            else None,
        )
        yield from self._or_proposed(changed, present.id)

    def _policy(
        self, path: str, account: str | None, after: dict[str, Any], present: Versioned
    ) -> Iterator[Change | Conflict]:
        before = policy_of(present.value)
        desired = policy_of(after)
        if before == desired:
            return
        looser = loosened(before, desired, of_organisation=account is None)
        loosens = tuple(f"loosens {rule}" for rule in looser)
        change = Change(
            *(Operation.UPDATE, Resource.POLICY, path, after, facts_of(before), loosens, present.etag),
            note="another person has to approve the whole policy" if loosens else None,
        )
        yield from self._or_proposed(change, account)

    def _or_proposed(self, change: Change, account: str | None) -> Iterator[Change | Conflict]:
        """Change a setting, or say that a looser value is proposed already."""
        for proposal in self._open(change.resource, account) if change.loosens else ():
            if proposal.proposed.get(change.resource) == change.after:
                yield Change(
                    *(Operation.WAIT, change.resource, change.path, change.after, change.before, change.loosens),
                    reason=_waits_for(proposal),
                )
            else:
                yield Conflict(change.path, f"{proposal.id} proposes another {change.resource}; have it decided first")
            return
        yield change

    def _open(self, kind: str, account: str | None) -> list[Proposal]:
        return [each for each in self._state.proposals if (each.kind, each.account) == (kind, account)]


def _waits_for(proposal: Proposal) -> str:
    return f"until another person approves {proposal.id}"


def _compare_terms(desired: DesiredAccount, present: Account) -> Iterator[Conflict]:
    """Find differences in terms that are fixed when an account is created."""
    terms = desired_terms(desired.document)
    for name in TERMS:
        there, here = present.terms.get(name), terms.get(name)
        if there != here:
            yield Conflict(
                desired.path,
                f"`{name}` is {_shown(there)} on the server and {_shown(here)} in the file, and is fixed when the "
                f"{desired.kind} is created: write the server's value, or create a {desired.kind} of another name",
            )


def _metadata(desired: DesiredAccount, present: Account) -> Iterator[Change]:
    """Find the metadata that the file states otherwise."""
    stated = desired_metadata(desired.document)
    after = {name: value for name, value in stated.items() if value != present.metadata.get(name)}
    if after:
        before = {name: present.metadata.get(name) for name in after}
        yield Change(Operation.UPDATE, Resource.METADATA, desired.path, after, before)


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:100]}…"  # noqa: PLR2004 - as much as fits into a line


def _alert_settings(desired: DesiredAccount, before: Facts) -> Iterator[Change]:
    """Find a change of alert settings; fewer thresholds and a shorter forecast lower protection."""
    settings = desired.document.alert_settings
    assert settings is not None, "the caller looked"
    after: dict[str, Any] = {
        "thresholds": [float(each) for each in settings.thresholds],
        "forecast_days": settings.forecast_days,
    }
    if before == after:
        return
    loosens = []
    if removed := sorted(set(before["thresholds"]) - set(after["thresholds"])):
        loosens.append(
            f"removes the threshold{'s' if removed[1:] else ''} {', '.join(f'{each:g}' for each in removed)}"
        )
    if settings.forecast_days < before["forecast_days"]:
        loosens.append("shortens the forecast")
    yield Change(Operation.UPDATE, Resource.ALERT_SETTINGS, desired.path, after, before, tuple(loosens))
