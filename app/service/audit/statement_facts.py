"""The parts of a statement's payload: whose data, what was released, and what it costs."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import DpEvent, event_from_dict, fingerprint
from app.accounting.risk import FALSE_POSITIVE_RATE, AttackRisk, Guarantee, attack_risk, privacy_profile
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.admission.admission import governing_of
from app.ledger.experiments import ChargingMode
from app.persistence.repositories import account_metadata, audit, experiments, runs, usage_history
from app.persistence.repositories.release_times import release_period
from app.service.audit.limit_standing import LimitStanding
from app.service.audit.mechanism_words import describe_mechanism
from app.service.audit.plain_claims import DIFFERENCES
from app.service.audit.shown_epsilon import shown_epsilon
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

    @property
    def events(self) -> dict[DpEvent, int] | None:
        """The events with their counts; None: there are more."""
        if self.kinds > len(self.totals):
            return None
        return {event_from_dict(json.loads(each.canonical_json)): each.count for each in self.totals}

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


def loss_facts(governing: LimitStanding, account: Account, events: Mapping[DpEvent, int] | None) -> dict[str, Any]:
    """Describe an account's privacy loss, its limit, and both as the risk of an attack.

    Args:
        governing: the account that limits it.
        account: with all that may have been released under it as spent.
        events: what was charged to it; None: only its curve counts.
    """
    limit, proven = governing.limit, governing.proven
    epsilon = shown_epsilon(account, governing.account)
    profile = privacy_profile(account.spent, events, account.relation, epsilon)
    return {
        "limit": asdict(limit),
        "limit_of": governing.account.id,
        "limit_revision": governing.account.limit_revision,
        "proven": proven and asdict(proven),
        "exceeded": governing.excess and governing.excess.facts(),
        "plan": plan_facts(governing.account),
        "delta": limit.delta,
        **json_finite(epsilon=epsilon),
        **(json_finite(limit_needed=released(governing.account).epsilon()) if proven is None else {}),
        "own_delta": account.spent.delta_value(),
        "risk": {
            "false_positive_rate": FALSE_POSITIVE_RATE,
            "by_limit": proven and _risk_facts(attack_risk([Guarantee(proven.epsilon, proven.delta)])),
            "by_charges": _risk_facts(attack_risk(profile)),
        },
    }


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
    if account.kind is AccountKind.RUN:
        return account
    return replace(account, spent=account.spent + account.held, held=zero_curve(account.grid_version))


def account_facts(account: Account) -> dict[str, Any]:
    """Describe an account with a limit."""
    assert account.limit is not None, "it was looked for"
    return {
        "id": account.id,
        "kind": str(account.kind),
        "path": account.path,
        "limit": asdict(account.limit),
        "plan": plan_facts(account),
        **json_finite(epsilon=shown_epsilon(account, account)),
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
            **json_finite(epsilon=record.reading.epsilon),
            "delta": record.reading.delta,
            "epsilon_limit": record.reading.epsilon_limit,
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
    found = []
    for path in find_paths(tx, context, run_ids):
        accounts = [record.account for record in path]
        own, governing = accounts[-1], governing_of(accounts)
        assert governing.limit is not None, "it governs by its limit"
        run = states[own.id]
        found.append(
            {
                "id": run.account_id,
                "path": own.path,
                "number": about[own.id].number,
                "display_name": about[own.id].metadata.display_name,
                "status": str(run.status),
                **json_finite(epsilon=shown_epsilon(own, released(governing))),
                "delta": governing.limit.delta,
                "decisions": run.decisions,
                "head": run.chain_head.hex(),
            }
        )
    return found


def chain_facts(tx: Connection, context: RequestContext) -> dict[str, Any]:
    """Describe the head of the organisation's chain."""
    count, head = audit.head(tx, context.organisation_id)
    return {"audit_length": count, "audit_head": head.hex()}
