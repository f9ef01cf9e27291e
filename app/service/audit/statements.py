"""Issue signed statements of privacy loss."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.admission import governing_of
from app.ledger.errors import AccountQuarantinedError
from app.ledger.experiments import ChargingMode
from app.ledger.runs.run import TERMINAL
from app.persistence.repositories import account_metadata, accounts, audit, experiments, runs, usage_history
from app.service.accounts.create import get_account
from app.service.accounts.epsilons import delta_of_run, read_epsilon, read_epsilons, read_run_epsilon
from app.service.audit.guarantees import guarantee
from app.service.audit.lineage_facts import lineage_facts
from app.service.auth.request_context import RequestContext
from app.service.experiments import ExperimentRecord, read_all
from app.service.json_values import json_finite
from app.service.queries.runs import find_path, find_paths
from app.service.signing.signatures import Signer
from app.version import VERSION

FORMAT: Final = 1
MOST_EVENTS: Final = 50
MOST_RUNS: Final = 200

NOT_CHARGED: Final = (
    "The sweep was not charged as it was declared: neither its trials nor the choice among them are covered."
)
COVERED: Final = (
    "Every step that was asked for or reported here, whether or not its result was used.",
    "Steps that were set aside for a trainer that fell silent: they count as released.",
    "On accounts above runs, all steps of open reservations: some of them may have been released already.",
    "Everything that is computed from the released results afterwards.",
)
CHOICES: Final = {
    ChargingMode.EACH_RUN: "Each run of the sweep is charged by itself. Where a model was chosen among them, what "
    "counts is what all of them have cost together.",
    ChargingMode.REPEAT_AND_SELECT: "The whole sweep is charged at once, the choice of the best trial included, "
    "provided that the number of trials was drawn as declared and that nothing but the best was looked at.",
}
NOT_COVERED: Final = (
    "Releases that were never reported. The ledger knows only authorized and reported steps.",
    "The choice among several models, unless they belong to one experiment.",
    "Whether the trainer clipped, sampled and drew noise as it said.",
    "Other data about the same people that is not in this population.",
    "What is true of the people as a group: privacy is about what one of them adds.",
    "Whether the parts of an account with disjoint parts are as disjoint as a person attested.",
)
OTHER_RUNS: Final = (
    "Other runs on these people, also those that this run started from: the population's statement has all."
)


def run_statement(context: RequestContext, run_id: str, signer: Signer) -> dict[str, Any]:
    """Issue a signed statement of a run's privacy loss.

    Raises:
        AccountQuarantinedError: an account of its path, or a run that it starts from, is quarantined.
    """
    with context.read() as tx:
        path = find_path(tx, context, run_id)
        _require_proven(path)
        run = runs.get(tx, context.organisation_id, run_id)
        events, kinds, steps = usage_history.charged_events(tx, context.organisation_id, run_id, MOST_EVENTS)
        own = path[-1]
        touched = [record.account for record in path]
        governing = governing_of(touched)
        numbers = account_metadata.numbers_of(tx, context.organisation_id, [run_id])
        payload = {
            **_head(context, "run_statement", OTHER_RUNS),
            "run": {
                "id": run_id,
                "name": own.account.name,
                "path": own.account.path,
                "number": numbers.get(run_id, 1),
                "status": str(run.status),
                "final": run.status in TERMINAL,
                "attempts": run.attempt,
                "registered_at": own.created_at.isoformat(),
            },
            "protected": _protected(path),
            "mechanisms": [
                {"event": json.loads(tally.canonical_json), "fingerprint": tally.fingerprint, "count": tally.count}
                for tally in events
            ],
            "mechanisms_in_all": kinds,
            "steps": steps,
            "decisions": usage_history.outcomes(tx, context.organisation_id, run_id),
            "loss": _loss(governing, own.account, read_run_epsilon(tx, context.organisation_id, path))
            | {"guarantee": guarantee(tx, context.organisation_id, governing, path)},
            "lineage": lineage_facts(tx, context, run, path),
            "accounts": [_account(tx, context, record) for record in path if record.account.limit is not None],
            "experiments": _experiments(tx, context, run_id, {tally.fingerprint for tally in events}),
            "chain": {"decisions": run.decisions, "head": run.chain_head.hex(), **_chain(tx, context)},
        }
        used = [tally.fingerprint for tally in events]
        payload["versions"] |= {
            "grid": own.account.grid_version,
            "formulas": usage_history.formula_versions(tx, context.organisation_id, used),
        }
    return signer.signed(payload)


def population_statement(context: RequestContext, population_id: str, signer: Signer) -> dict[str, Any]:
    """Issue a signed statement of the total privacy loss of a population.

    Raises:
        AccountQuarantinedError: the population is quarantined.
    """
    record = get_account(context, AccountKind.POPULATION, population_id).record
    with context.db.read(context.organisation_id) as tx:
        [record] = accounts.path_of(tx, context.organisation_id, record.account.id)
        _require_proven([record])
        released = _released(record.account)
        ids, count = usage_history.runs_under(tx, context.organisation_id, population_id, MOST_RUNS)
        payload = {
            **_head(context, "population_statement"),
            "population": {"id": population_id, "name": record.account.name},
            "protected": _protected([record]),
            "loss": _loss(released, released, _epsilon(tx, context, record))
            | {"guarantee": guarantee(tx, context.organisation_id, record.account, [record])},
            "runs": _trained(tx, context, ids),
            "runs_in_all": count,
            "chain": _chain(tx, context),
        }
        payload["versions"] |= {"grid": record.account.grid_version}
    return signer.signed(payload)


def _head(context: RequestContext, kind: str, *not_covered: str) -> dict[str, Any]:
    return {
        "type": kind,
        "format": FORMAT,
        "organisation": context.organisation_id,
        "issued_at": context.now.isoformat(),
        "issued_to": context.principal.actor,
        "covered": list(COVERED),
        "not_covered": [*not_covered, *NOT_COVERED],
        "versions": {"service": VERSION},
    }


def _protected(path: Sequence[AccountRecord]) -> list[dict[str, Any]]:
    """Describe the people of each population above an account; a run may charge several."""
    return [
        {
            "population": record.account.id,
            "name": record.account.name,
            "privacy_unit": record.population.privacy_unit,
            "neighboring_relation": str(record.population.relation),
            "size": record.population.size,
        }
        for record in path
        if record.account.kind is AccountKind.POPULATION
    ]


def _loss(governing: Account, account: Account, epsilon: float) -> dict[str, Any]:
    """Describe an account's privacy loss."""
    assert governing.limit is not None, "it governs by its limit"
    return {
        "limit": asdict(governing.limit),
        "limit_of": governing.id,
        "limit_revision": governing.limit_revision,
        "plan": _plan(governing),
        "delta": governing.limit.delta,
        **json_finite(epsilon=epsilon),
        "used": governing.used(),
        "own_delta": account.spent.delta_value(),
    }


def _plan(account: Account) -> dict[str, Any] | None:
    """Describe the plan by which an account admits charges."""
    status = account.plan_status
    if status is None:
        return None
    counts = {"steps": status.steps, "steps_used": status.steps_used, "steps_remaining": status.steps_remaining}
    return {"state": str(status.state), "delta": status.delta, **counts}


def _released(account: Account) -> Account:
    """Copy an account with all that may have been released under it as spent.

    Steps of a reservation are charged to their run at once, and to the accounts above it when the reservation is
    closed: until then these only hold them. A run's own account is exact.
    """
    if account.kind is AccountKind.RUN:
        return account
    return replace(account, spent=account.spent + account.held, held=zero_curve(account.grid_version))


def _epsilon(tx: Connection, context: RequestContext, record: AccountRecord) -> float:
    """Read the epsilon of all that may have been released under an account."""
    account = record.account
    assert account.limit is not None, "it was looked for"
    if account.held.is_zero or account.kind is AccountKind.RUN:
        return read_epsilon(tx, context.organisation_id, record)
    return _released(account).rdp_epsilon(account.limit.delta)


def _account(tx: Connection, context: RequestContext, record: AccountRecord) -> dict[str, Any]:
    account = _released(record.account)
    assert account.limit is not None, "it was looked for"
    return {
        "id": account.id,
        "kind": str(account.kind),
        "path": account.path,
        "limit": asdict(account.limit),
        "plan": _plan(account),
        **json_finite(epsilon=_epsilon(tx, context, record)),
        "used": account.used(),
    }


def _experiments(
    tx: Connection, context: RequestContext, run_id: str, charged: Collection[str]
) -> list[dict[str, Any]]:
    """Describe a run's experiments; a model chosen among runs costs as much as they do together."""
    found = experiments.above(tx, context.organisation_id, run_id)
    return [
        {
            "id": record.experiment.id,
            "path": record.account.account.path,
            "runs": record.runs,
            "charging_mode": str(record.experiment.charging_mode),
            "choice": CHOICES[record.experiment.charging_mode] if _is_paid(record, charged) else NOT_CHARGED,
            **json_finite(epsilon=record.epsilon),
            "delta": record.delta,
        }
        for record in read_all(tx, context, found)
    ]


def _is_paid(record: ExperimentRecord, charged: Collection[str]) -> bool:
    """Whether an experiment charged in advance was charged as declared; true for others."""
    return record.run is None or (record.run.event is not None and fingerprint(record.run.event) in charged)


def _trained(tx: Connection, context: RequestContext, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Describe runs with their cost, in a constant number of statements."""
    states = {run.account_id: run for run in runs.get_many(tx, context.organisation_id, run_ids)}
    numbers = account_metadata.numbers_of(tx, context.organisation_id, run_ids)
    trained = []
    paths = find_paths(tx, context, run_ids)
    deltas = [delta_of_run([record.account for record in path]) for path in paths]
    wanted = [(path[-1], delta) for path, delta in zip(paths, deltas, strict=True)]
    epsilons = read_epsilons(tx, context.organisation_id, wanted)
    for path, epsilon, delta in zip(paths, epsilons, deltas, strict=True):
        run = states[path[-1].account.id]
        trained.append(
            {
                "id": run.account_id,
                "path": path[-1].account.path,
                "number": numbers.get(run.account_id, 1),
                "status": str(run.status),
                **json_finite(epsilon=epsilon),
                "delta": delta,
                "decisions": run.decisions,
                "head": run.chain_head.hex(),
            }
        )
    return trained


def _chain(tx: Connection, context: RequestContext) -> dict[str, Any]:
    count, head = audit.head(tx, context.organisation_id)
    return {"audit_length": count, "audit_head": head.hex()}


def _require_proven(path: Sequence[AccountRecord]) -> None:
    for record in path:
        if record.quarantine is not None:
            raise AccountQuarantinedError(
                f"No statement is made about {record.account.path}: verification found that its balance does not "
                "follow from its charges. Two persons lift that: "
                f"POST /v1/accounts/{record.account.id}/quarantine/lift.",
                account=record.account.id,
            )
