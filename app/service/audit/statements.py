"""Issue signed statements of privacy loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.admission.admission import governing_of
from app.ledger.errors import AccountQuarantinedError, InvalidInputError
from app.ledger.filter.limits import Limit
from app.ledger.runs.run import TERMINAL
from app.persistence.repositories import account_metadata, accounts, organisations, runs, usage_history
from app.service.accounts.create import get_account
from app.service.actors import name_actor
from app.service.audit.guarantees import guarantee
from app.service.audit.limit_history import limit_facts
from app.service.audit.limit_standing import standing_of
from app.service.audit.lineage_facts import lineage_facts
from app.service.audit.plain_claims import plain_claim
from app.service.audit.statement_facts import (
    account_facts,
    chain_facts,
    deployment_facts,
    experiment_facts,
    loss_facts,
    period_facts,
    protected_facts,
    read_releases,
    run_facts,
)
from app.service.auth.request_context import RequestContext
from app.service.queries.runs import find_path
from app.service.signing.signatures import Signer
from app.version import VERSION

FORMAT: Final = 1
RUN: Final = "run_statement"
POPULATION: Final = "population_statement"
MOST_RUNS: Final = 200

COVERED: Final = (
    "Every step that was asked for or reported here, whether or not its result was used.",
    "Steps that were set aside for a trainer that fell silent: they count as released.",
    "On accounts above runs, all steps of open reservations: some of them may have been released already.",
    "Everything that is computed from the released results afterwards.",
)
NOT_COVERED: Final = (
    "Releases that were never reported. The ledger knows only authorized and reported steps.",
    "Other data about the same people that is not in this population.",
    "The sum over several populations: a person who is in several has the losses of all of them.",
    "The choice among several models, unless they belong to one experiment.",
    "Whether the trainer clipped, sampled and drew noise as it said.",
    "Results that were computed before the noise, such as metrics on raw data, and the size of the population.",
    "What is true of the people as a group: privacy is about what one of them adds.",
    "Whether the parts of an account with disjoint parts are as disjoint as a person attested.",
)
OTHER_RUNS: Final = (
    "In the number of the run, other runs on these people, also those that this run started from: the total has them."
)


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who issues statements; `url` is the service's configured public origin, None: it has none."""

    signer: Signer
    url: str | None


def run_statement(context: RequestContext, run_id: str, issuer: Issuer) -> dict[str, Any]:
    """Issue a signed statement of a run's privacy loss.

    Raises:
        AccountQuarantinedError: an account of its path, or a run that it starts from, is quarantined.
    """
    return issuer.signer.signed(run_payload(context, run_id, issuer.url))


def run_payload(context: RequestContext, run_id: str, url: str | None) -> dict[str, Any]:
    """Build the payload of `run_statement`; `url` is the service's public origin."""
    with context.read() as tx:
        path = find_path(tx, context, run_id)
        _require_proven(path)
        about = account_metadata.find_many(tx, context.organisation_id, [record.account.id for record in path])
        run = runs.get(tx, context.organisation_id, run_id)
        payload = {
            **_head(tx, context, url, RUN, OTHER_RUNS),
            "run": {
                **_subject(path[-1], about),
                "number": about[run_id].number,
                "status": str(run.status),
                "final": run.status in TERMINAL,
                "attempts": run.attempt,
                "registered_at": path[-1].created_at.isoformat(),
            },
            "decisions": usage_history.outcomes(tx, context.organisation_id, run_id),
            **_claims(tx, context, path, about),
            "lineage": lineage_facts(tx, context, run, path),
            "accounts": [
                account_facts(tx, context.organisation_id, record)
                for record in path
                if record.account.limit is not None
            ],
            "chain": {"decisions": run.decisions, "head": run.chain_head.hex(), **chain_facts(tx, context)},
        }
        used = [each["fingerprint"] for each in payload["mechanisms"]]
        payload["experiments"] = experiment_facts(tx, context, run_id, set(used))
        formulas = usage_history.formula_versions(tx, context.organisation_id, used)
        payload["versions"] |= {"grid": path[-1].account.grid_version, "formulas": formulas}
    return payload


def population_statement(context: RequestContext, population_id: str, issuer: Issuer) -> dict[str, Any]:
    """Issue a signed statement of the total privacy loss of a population.

    Raises:
        AccountQuarantinedError: the population is quarantined.
    """
    return issuer.signer.signed(population_payload(context, population_id, issuer.url))


def population_payload(context: RequestContext, population_id: str, url: str | None) -> dict[str, Any]:
    """Build the payload of `population_statement`; `url` is the service's public origin."""
    record = get_account(context, AccountKind.POPULATION, population_id).record
    with context.db.read(context.organisation_id) as tx:
        path = accounts.path_of(tx, context.organisation_id, record.account.id)
        _require_proven(path)
        [own] = path
        about = account_metadata.find_many(tx, context.organisation_id, [own.account.id])
        ids, count = usage_history.runs_under(tx, context.organisation_id, own.account.id, MOST_RUNS)
        payload = {
            **_head(tx, context, url, POPULATION),
            "population": _subject(own, about),
            **_claims(tx, context, path, about),
            "runs": run_facts(tx, context, ids),
            "runs_in_all": count,
            "chain": chain_facts(tx, context),
        }
        payload["versions"] |= {"grid": own.account.grid_version}
    return payload


def describe_statement(payload: Mapping[str, Any]) -> str:
    """Describe the payload of a signed statement: kind, organisation, subject, numbers and date.

    Raises:
        InvalidInputError: it is another signed document.
    """
    if payload.get("type") not in (RUN, POPULATION):
        raise InvalidInputError(f"This is a signed {payload.get('type')!a}, and no statement.")
    about, loss = payload.get("run") or payload["population"], payload["loss"]
    kind = f"{payload['type']} of {payload['organisation_name']!a}, {payload['organisation']}"
    numbers = f"epsilon {loss['epsilon']} at delta {loss['delta']}, within {Limit.of(loss['limit'])}"
    return f"{kind}, about {about['path']!a}, {about['id']}, {numbers}, on {payload['issued_at']}."


def _head(tx: Connection, context: RequestContext, url: str | None, kind: str, *not_covered: str) -> dict[str, Any]:
    return {
        "type": kind,
        "format": FORMAT,
        "organisation": context.organisation_id,
        "organisation_name": organisations.organisation_name(tx, context.organisation_id),
        "issuer": {"url": url},
        "issued_at": context.now.isoformat(),
        "issued_to": name_actor(tx, context.organisation_id, context.principal.actor),
        "covered": list(COVERED),
        "not_covered": [*not_covered, *NOT_COVERED],
        "versions": {"service": VERSION},
    }


def _subject(record: AccountRecord, about: Mapping[str, AccountMetadata]) -> dict[str, Any]:
    """Describe what a statement is about."""
    account, metadata = record.account, about[record.account.id].metadata
    written = {"display_name": metadata.display_name, "description": metadata.description}
    return {"id": account.id, "name": account.name, "path": account.path, **written}


def _claims(
    tx: Connection, context: RequestContext, path: Sequence[AccountRecord], about: Mapping[str, AccountMetadata]
) -> dict[str, Any]:
    """Describe what was released by the last account of a path, and what its limit and its populations' guarantee."""
    organisation, own = context.organisation_id, path[-1].account
    populations = {each.account.id: each for each in path if each.account.kind is AccountKind.POPULATION}
    totals = {key: standing_of(tx, organisation, each.account) for key, each in populations.items()}
    limiting = governing_of([record.account for record in path])
    governing = totals.get(limiting.id) or standing_of(tx, organisation, limiting)
    people = populations[limiting.population_id].population
    return {
        "protected": protected_facts(populations.values(), about),
        "deployment": deployment_facts(path, about),
        "period": period_facts(tx, organisation, own.id),
        **read_releases(tx, organisation, own.id).facts(),
        "loss": {
            **loss_facts(tx, organisation, governing, path[-1]),
            "in_words": plain_claim(governing, people),
            "guarantee": guarantee(governing, list(totals.values()), people),
        },
        "totals": [
            {
                "population": key,
                "path": each.account.path,
                **loss_facts(tx, organisation, each, populations[key]),
                "in_words": plain_claim(each, populations[key].population),
            }
            for key, each in totals.items()
            if own.kind is AccountKind.RUN
        ],
        "limits": [
            limit_facts(tx, organisation, each.account, each.history)
            for each in {governing.account.id: governing, **totals}.values()
        ],
    }


def _require_proven(path: Sequence[AccountRecord]) -> None:
    for record in path:
        if record.quarantine is not None:
            raise AccountQuarantinedError(
                f"No statement is made about {record.account.path}: verification found that its balance does not "
                "follow from its charges. Two persons lift that: "
                f"POST /v1/accounts/{record.account.id}/quarantine/lift.",
                account=record.account.id,
            )
