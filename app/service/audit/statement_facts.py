"""The parts of a statement's payload: whose data, what was released, and what it costs."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import DpEvent, event_from_dict, fingerprint
from app.accounting.risk import FALSE_POSITIVE_RATE, AttackRisk, attack_risk, privacy_profile
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.experiments import ChargingMode
from app.persistence.repositories import account_metadata, audit, dp_events, experiments, runs, usage_history
from app.persistence.repositories.release_times import release_period
from app.service.accounts.epsilons import delta_of_run, read_epsilon, read_epsilons
from app.service.accounts.equivalents import limit_risk
from app.service.audit.limit_standing import LimitStanding
from app.service.audit.mechanism_words import describe_mechanism
from app.service.audit.plain_claims import DIFFERENCES
from app.service.auth.request_context import RequestContext
from app.service.experiments import ExperimentRecord, read_all
from app.service.json_values import json_finite
from app.service.queries.runs import find_paths

MOST_EVENTS: Final = 50

NOT_CHARGED: Final = (
    "The sweep was not charged as it was declared: neither its trials nor the choice among them are covered."
)
CHOICES: Final = {
    ChargingMode.EACH_RUN: "Each run of the sweep is charged by itself. Where a model was chosen among them, what "
    "counts is what all of them have cost together.",
    ChargingMode.REPEAT_AND_SELECT: "The whole sweep is charged at once, the choice of the best trial included, "
    "provided that the number of trials was drawn as declared and that nothing but the best was looked at.",
}


@dataclass(frozen=True, slots=True)
class Releases:
    """What was charged at or under an account.

    Args:
        totals: the `MOST_EVENTS` frequent events with their counts.
        kinds: number of different events.
        steps: number of charged steps.
    """

    totals: Sequence[usage_history.ChargeTotal]
    kinds: int
    steps: int

    def facts(self) -> dict[str, Any]:
        """Serialize them, also in words."""
        mechanisms, words = [], dict[str, int]()
        for each in self.totals:
            event = json.loads(each.canonical_json)
            mechanisms.append({"event": event, "fingerprint": each.fingerprint, "count": each.count})
            text = describe_mechanism(event_from_dict(event))
            words[text] = words.get(text, 0) + each.count
        return {
            "mechanisms": mechanisms,
            "mechanisms_in_all": self.kinds,
            "mechanisms_in_words": [{"words": text, "releases": count} for text, count in words.items()],
            "steps": self.steps,
        }


def read_releases(tx: Connection, organisation_id: str, account_id: str) -> Releases:
    """Count what was charged at or under an account."""
    return Releases(*usage_history.charged_events(tx, organisation_id, account_id, MOST_EVENTS))


def period_facts(tx: Connection, organisation_id: str, account_id: str) -> dict[str, str] | None:
    """Describe the time from the first to the last charge; None: nothing was charged."""
    period = release_period(tx, organisation_id, account_id)
    return None if period is None else {name: at.isoformat() for name, at in asdict(period).items()}


def protected_facts(populations: Iterable[AccountRecord], about: Mapping[str, AccountMetadata]) -> list[dict[str, Any]]:
    """Describe the people of each population; a run may charge several."""
    return [
        {
            "population": record.account.id,
            "name": record.account.name,
            "display_name": about[record.account.id].metadata.display_name,
            "description": about[record.account.id].metadata.description,
            "privacy_unit": record.population.privacy_unit,
            "neighboring_relation": str(record.population.relation),
            "difference": DIFFERENCES[record.population.relation].format(unit=record.population.privacy_unit),
            "size": record.population.size,
        }
        for record in populations
    ]


def deployment_facts(path: Sequence[AccountRecord], about: Mapping[str, AccountMetadata]) -> dict[str, str]:
    """Get what people wrote for the registry of deployments: the account's own values, or else those above it."""
    found: dict[str, str] = {}
    for record in path:
        found |= about[record.account.id].metadata.deployment
    return found


def loss_facts(tx: Connection, organisation_id: str, governing: LimitStanding, own: AccountRecord) -> dict[str, Any]:
    """Describe an account's privacy loss, the limit that governs it, and both as the risk of an attack."""
    limit, proven, limited = governing.limit, governing.proven, released(governing.account)
    account = released(own.account)
    epsilon = released_epsilon(tx, organisation_id, own, limit.shown_delta)
    profile = privacy_profile(account.spent, _events(tx, organisation_id, own), account.relation, epsilon)
    needed = {} if proven else json_finite(limit_needed=_limit_needed(limited))
    return {
        "limit": limit.facts(),
        "limit_of": governing.account.id,
        "limit_revision": governing.account.limit_revision,
        "proven": proven and proven.facts(),
        "exceeded": governing.excess and governing.excess.facts(),
        "plan": plan_facts(governing.account),
        "delta": limit.shown_delta,
        **json_finite(epsilon=epsilon),
        "used": limited.used(),
        "own_delta": account.spent.delta_value(),
        "risk": {
            "false_positive_rate": FALSE_POSITIVE_RATE,
            "by_limit": proven and _risk_facts(limit_risk(proven)),
            "by_charges": _risk_facts(attack_risk(profile)),
        },
        **needed,
    }


def _limit_needed(limited: Account) -> float:
    """Compute the smallest value of a limit in its unit under which its filter would have admitted what is spent."""
    gate, limit = limited.bounds(), limited.limit
    assert limit is not None, "it governs by its limit"
    if not limit.is_exact:
        return gate.limit_needed(limited.spent)
    return inf if limited.spent.delta > gate.room else limit.value_for(gate.exact_loss(limited.spent))


def released_epsilon(tx: Connection, organisation_id: str, record: AccountRecord, delta: float) -> float:
    """Read the epsilon at a delta of all that may have been released under an account."""
    account = released(record.account)
    return read_epsilon(tx, organisation_id, record, delta) if account is record.account else account.rdp_epsilon(delta)


def _events(tx: Connection, organisation_id: str, record: AccountRecord) -> dict[DpEvent, int] | None:
    """Get the events that an account counts; None: not all that may have been released is counted."""
    counts = record.counts
    if counts is None or released(record.account) is not record.account:
        return None
    events = dp_events.find_events(tx, organisation_id, counts.keys())
    return {events[key]: count for key, count in counts.items()} if counts.keys() <= events.keys() else None


def _risk_facts(risk: AttackRisk) -> dict[str, Any]:
    return {
        "advantage": risk.advantage,
        "true_positive_rate": risk.true_positive_rate,
        "singled_out_of_1000": risk.singled_out,
    }


def plan_facts(account: Account) -> dict[str, Any] | None:
    """Describe the plan by which an account admits charges."""
    status = account.plan_status
    if status is None:
        return None
    counts = {"steps": status.steps, "steps_used": status.steps_used, "steps_remaining": status.steps_remaining}
    return {"state": str(status.state), "delta": status.delta, **counts}


def released(account: Account) -> Account:
    """Copy an account with all that may have been released under it as spent.

    Steps of a reservation are charged to their run at once, and to the accounts above it when the reservation is
    closed: until then these only hold them. A run's own account is exact.
    """
    if account.kind is AccountKind.RUN or account.held.is_zero:
        return account
    return replace(account, spent=account.spent + account.held, held=zero_curve(account.grid_version))


def account_facts(tx: Connection, organisation_id: str, record: AccountRecord) -> dict[str, Any]:
    """Describe an account with a limit."""
    account = record.account
    assert account.limit is not None, "it was looked for"
    return {
        "id": account.id,
        "kind": str(account.kind),
        "path": account.path,
        "limit": account.limit.facts(),
        "plan": plan_facts(account),
        **json_finite(epsilon=released_epsilon(tx, organisation_id, record, account.limit.shown_delta)),
        "used": released(account).used(),
    }


def experiment_facts(
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


def run_facts(tx: Connection, context: RequestContext, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Describe runs with their cost, in a constant number of statements."""
    states = {run.account_id: run for run in runs.get_many(tx, context.organisation_id, run_ids)}
    about = account_metadata.find_many(tx, context.organisation_id, run_ids)
    paths = find_paths(tx, context, run_ids)
    deltas = [delta_of_run([record.account for record in path]) for path in paths]
    wanted = [(path[-1], delta) for path, delta in zip(paths, deltas, strict=True)]
    found = []
    for (own, delta), epsilon in zip(wanted, read_epsilons(tx, context.organisation_id, wanted), strict=True):
        run = states[own.account.id]
        found.append(
            {
                "id": run.account_id,
                "path": own.account.path,
                "number": about[run.account_id].number,
                "display_name": about[run.account_id].metadata.display_name,
                "status": str(run.status),
                **json_finite(epsilon=epsilon),
                "delta": delta,
                "decisions": run.decisions,
                "head": run.chain_head.hex(),
            }
        )
    return found


def chain_facts(tx: Connection, context: RequestContext) -> dict[str, Any]:
    """Describe the head of the organisation's chain."""
    count, head = audit.head(tx, context.organisation_id)
    return {"audit_length": count, "audit_head": head.hex()}
