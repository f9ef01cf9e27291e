"""Are policies, keys, proposals and experiments what the acts about them have made of them?"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection

from app.ledger.audit import canonical
from app.persistence.repositories import experiments, keys, proposals, tenants
from app.persistence.repositories.keys import KeyRecord
from app.persistence.repositories.proposals import Proposal
from app.service.verification.terms import Told


def office_disagreements(
    tx: Connection, told: Mapping[str, Told], organisation_id: str | None
) -> Iterator[tuple[str, str]]:
    """What is wrong with an organisation's policy, keys, proposals and experiments, held against the acts about them.

    Args:
        tx: the verification's transaction.
        told: what the acts of each organisation say.
        organisation_id: whose; None: everybody's.

    Returns:
        Organisation and sentence; none of an organisation whose acts cannot be believed.
    """
    kept_keys: dict[str, dict[str, dict[str, Any]]] = {}
    for key in keys.everything(tx, organisation_id):
        kept_keys.setdefault(key.organisation_id, {})[key.id] = _key(key)
    kept_proposals: dict[str, dict[str, dict[str, Any]]] = {}
    for owner, proposal in proposals.everything(tx, organisation_id):
        kept_proposals.setdefault(owner, {})[proposal.id] = _proposal(proposal)
    kept_experiments: dict[str, dict[str, str]] = {}
    for owner, experiment in experiments.everything(tx, organisation_id):
        kept_experiments.setdefault(owner, {})[experiment.id] = canonical(experiment.facts())
    houses = tenants.policies(tx, organisation_id)
    for owner in sorted({*told, *kept_keys, *kept_proposals, *kept_experiments, *houses}):
        said = told.get(owner, Told())
        if said.fault is not None:
            continue
        if said.policies.get(owner) != houses.get(owner):
            yield owner, "its policy is not the one that its acts gave it."
        for of in _different(said.keys, kept_keys.get(owner, {}), complete=said.founded):
            yield owner, f"the key {of} is not as the organisation's acts have it, or one of both is missing."
        for of in _different(said.experiments, kept_experiments.get(owner, {}), complete=True):
            yield owner, f"the experiment {of} is not the one that was declared, or one of both is missing."
        for of in _different(said.proposals, kept_proposals.get(owner, {}), complete=True):
            yield owner, f"the proposal {of} is not as the organisation's acts have it, or one of both is missing."


def _different(said: Mapping[str, object], kept: Mapping[str, object], *, complete: bool) -> list[str]:
    """The ids of what is not the same; what no act knows counts only where acts are complete."""
    return [of for of in sorted(said.keys() | kept.keys()) if (complete or of in said) and said.get(of) != kept.get(of)]


def _key(key: KeyRecord) -> dict[str, Any]:
    """What acts say of a key; that of earlier versions, which kept less, is not known to them."""
    return {
        "role": key.role,
        "scope": key.scope,
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
        "created_by": key.created_by,
    }


def _proposal(proposal: Proposal) -> dict[str, Any]:
    proposed = json.loads(proposal.facts) | {"account": proposal.account_id}
    return {"proposed": proposed, "proposed_by": proposal.proposed_by, "status": str(proposal.status)}
