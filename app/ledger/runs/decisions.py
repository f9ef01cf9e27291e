"""Decisions on requests for steps, and the hash chain of each run's decisions.

An entry's hash covers the previous hash and all of its own fields, so changed or missing entries break the chain. The
first link depends on the run, so that chains cannot be exchanged (ADR 0014).
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _text
from math import isinf
from typing import Final, NamedTuple, Self

from app.accounting.events import fingerprint
from app.ledger.accounts.metadata import title_of
from app.ledger.audit import Actor, utc_text
from app.ledger.filter.limits import Limit
from app.ledger.ids import is_id
from app.ledger.pages import PageRequest, is_moment, is_position, keyset_text
from app.ledger.query_parameters import actor_parameter, parameter, since_parameter, until_parameter
from app.ledger.repeated_events import map_once
from app.ledger.step_events import StepEvent

_NULL: Final = "null"
_DECISIONS: Final = "decisions"


class DecisionOutcome(StrEnum):
    """The outcome of steps: admitted, refused, reported as executed, or forfeited."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    REPORTED = "reported"
    FORFEITED = "forfeited"


# What is made for each step is a named tuple: a frozen dataclass takes ten times as long to build.
class Reading(NamedTuple):
    """The numbers of a run after a decision.

    Args:
        epsilon: of all that the run was charged, at the delta that is shown with `limit`: as the tightest accountant
            for releases that were fixed in advance computes it, at most 0.5 % above, or by the Rényi curve (ADR 0054).
            It is no bound under adaptive choices, as the limit is.
        limit: that governs the run: its own, or that of the nearest account above.
        used: share of the capacity of the account that decides.
    """

    epsilon: float
    limit: Limit
    used: float

    @property
    def delta(self) -> float:
        """The delta at which epsilon holds."""
        return self.limit.shown_delta


class Decision(NamedTuple):
    """An immutable decision on a run's steps.

    Args:
        steps: the requested ones, or the admitted prefix of `step_count`.
        reading: of the run, afterwards.
        steps_remaining: further repetitions of the last event; None if refused.
        refusal_details: JSON of a refusal; None if admitted.
        ended_plans: JSON of the plans that these steps ended; None if there are none.
        warnings: JSON of texts on accounts whose filters are not tuned to the run; None if there are none.
        reservation_id: the source of the steps; None: the accounts.
        population_version: of the population's account afterwards, which orders the decisions of all its runs. Those
            that do not change it, refusals and steps out of reservations, have the version that they saw; it may be
            an earlier one of a step out of a reservation.
        actor: the author and id of the request.
        entry_hash: link of the run's chain, of a decision that was read from the ledger.
    """

    run_id: str
    position: int
    attempt: int
    outcome: DecisionOutcome
    steps: tuple[StepEvent, ...]
    first_step: int
    step_count: int
    requested_count: int
    reading: Reading
    steps_remaining: int | None
    binding_account_id: str
    binding_account_path: str
    refusal_details: str | None
    ended_plans: str | None
    warnings: str | None
    request_fingerprint: str
    idempotency_key: str | None
    reservation_id: str | None
    population_version: int
    created_at: datetime
    actor: Actor
    entry_hash: bytes = b""

    @property
    def admitted(self) -> bool:
        """Whether the run advanced: the steps were admitted or reported."""
        return self.outcome in {DecisionOutcome.ADMITTED, DecisionOutcome.REPORTED}

    @property
    def next_step(self) -> int:
        """The number of the step after the run's last one."""
        return self.first_step + self.step_count if self.admitted else self.first_step


class DecisionEntry(NamedTuple):
    """All fields of a decision and its items.

    Args:
        position: index among the run's decisions.
        outcome: admitted, refused, reported or forfeited.
        request_fingerprint: sha256 (hex) of the request.
        requested_count: number of requested steps; larger than `step_count` if only a prefix was admitted.
        items: (fingerprint of an event, count), in order.
        reservation_id: the reservation of the steps, or the forfeited one.
        epsilon: of the run, afterwards, as `used` of the account that decides; the limit is that of `Reading`.
        steps_remaining: further repetitions of the last event; None if refused or forfeited.
        refusal_details: of a refusal, as stored text; likewise `ended_plans` and `warnings` of steps.
        population_version: of the population's account, afterwards.
        actor: the author of the request.
    """

    organisation_id: str
    run_id: str
    position: int
    attempt: int
    outcome: str
    idempotency_key: str | None
    request_fingerprint: str
    first_step: int
    step_count: int
    requested_count: int
    items: tuple[tuple[str, int], ...]
    reservation_id: str | None
    epsilon: float
    limit_unit: str
    limit_value: float
    limit_delta: float
    used: float
    steps_remaining: int | None
    binding_account_id: str
    refusal_details: str | None
    ended_plans: str | None
    warnings: str | None
    population_version: int
    created_at: datetime
    actor: str
    request_id: str | None = None


def genesis(organisation_id: str, run_id: str) -> bytes:
    """Compute the hash before a run's first decision."""
    text = json.dumps({"organisation": organisation_id, "run": run_id}, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def canonical_entry(entry: DecisionEntry) -> str:
    """Serialize an entry to its unique JSON: sorted keys, no spaces, ASCII.

    Floats are the shortest that round-trip, an infinite epsilon is null, and times are UTC with microseconds.
    It is not RFC 8785's, whose library is many times slower. Exports contain this text itself, so that a program in
    another language need not write it.
    """
    # Hot path: the json encoder takes four times as long.
    items = ",".join([f"[{_text(event)},{count}]" for event, count in entry.items])
    texts = (
        *(entry.idempotency_key, entry.refusal_details, entry.ended_plans, entry.warnings),
        *(entry.request_id, entry.reservation_id),
    )
    key, details, ended, warnings, request, reservation = [_NULL if text is None else _text(text) for text in texts]
    return (
        f'{{"actor":{_text(entry.actor)},"attempt":{entry.attempt},"binding_account_id":{_text(entry.binding_account_id)},'
        f'"created_at":"{utc_text(entry.created_at)}",'
        f'"ended_plans":{ended},'
        f'"epsilon":{_NULL if isinf(entry.epsilon) else _float(entry.epsilon)},'
        f'"first_step":{entry.first_step},"idempotency_key":{key},"items":[{items}],'
        f"{_limit(entry.limit_delta, entry.limit_unit, entry.limit_value)},"
        f'"organisation_id":{_text(entry.organisation_id)},"outcome":{_text(entry.outcome)},'
        f'"population_version":{entry.population_version},'
        f'"position":{entry.position},"refusal_details":{details},'
        f'"request_fingerprint":{_text(entry.request_fingerprint)},"request_id":{request},'
        f'"requested_count":{entry.requested_count},'
        f'"reservation_id":{reservation},"run_id":{_text(entry.run_id)},'
        f'"step_count":{entry.step_count},'
        f'"steps_remaining":{_NULL if entry.steps_remaining is None else entry.steps_remaining},'
        f'"used":{float(entry.used)!r},"warnings":{warnings}}}'
    )


@lru_cache(maxsize=1024)
def _float(number: float) -> str:
    return repr(float(number))


@lru_cache(maxsize=1024)
def _limit(delta: float, unit: str, value: float) -> str:
    return f'"limit_delta":{float(delta)!r},"limit_unit":{_text(unit)},"limit_value":{float(value)!r}'


def entry_hash(previous: bytes, entry: DecisionEntry) -> bytes:
    """Compute the hash of an entry, the run's new head."""
    return hashlib.sha256(previous + canonical_entry(entry).encode()).digest()


def item_of(step: StepEvent) -> tuple[str, int]:
    """Get the fingerprint of an event, and its count."""
    return fingerprint(step.event), step.count


def entry_of(organisation_id: str, decision: Decision) -> DecisionEntry:
    """Get the entry of a decision of an organisation."""
    reading, actor = decision.reading, decision.actor
    return DecisionEntry(
        organisation_id,
        decision.run_id,
        decision.position,
        decision.attempt,
        str(decision.outcome),
        decision.idempotency_key,
        decision.request_fingerprint,
        decision.first_step,
        decision.step_count,
        decision.requested_count,
        tuple(map_once(item_of, decision.steps)),
        decision.reservation_id,
        reading.epsilon,
        reading.limit.unit.value,
        reading.limit.value,
        reading.limit.delta,
        reading.used,
        decision.steps_remaining,
        decision.binding_account_id,
        decision.refusal_details,
        decision.ended_plans,
        decision.warnings,
        decision.population_version,
        decision.created_at,
        actor.id,
        actor.request_id,
    )


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """A filter of decisions; None: any.

    `within` is an account that the run charges or is, by id or path in a request.
    """

    within: str | None = parameter(
        "Only decisions on runs under this account (id or path), at any depth.",
        name="account",
        label="Population, budget or run",
        hint="path or id",
        is_reference=True,
    )
    run_id: str | None = parameter(
        "Only decisions on this run (id).", name="run", label="Run", hint="id", most=100, is_reference=True
    )
    outcome: DecisionOutcome | None = parameter("Only decisions with this outcome.", name="decision", label="Outcome")
    actor: str | None = actor_parameter()
    since: datetime | None = since_parameter()
    until: datetime | None = until_parameter()


@dataclass(frozen=True, slots=True)
class DecisionCursor:
    """A stable cursor among all decisions."""

    created_at: datetime
    run_id: str
    position: int

    def __str__(self) -> str:
        """Write the cursor as a place of a list."""
        return keyset_text(_DECISIONS, self.created_at.isoformat(), self.run_id, str(self.position))

    @classmethod
    def of(cls, request: PageRequest) -> Self | None:
        """Read the cursor of a request; None: it is for the first page.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        if request.after is None:
            return None
        created_at, run_id, position = request.keyset(_DECISIONS, is_moment, is_id, is_position)
        return cls(datetime.fromisoformat(created_at), run_id, int(position))


@dataclass(frozen=True, slots=True)
class DecisionWithPath:
    """A decision, and the path of its run with its number among the runs at this path."""

    decision: Decision
    run_path: str
    run_number: int = 1

    @property
    def run_title(self) -> str:
        """The run's path, with its number if it is not the first."""
        return title_of(self.run_path, self.run_number)

    @property
    def binding_title(self) -> str:
        """The path of the account with the least room, with the number of a run that is not the first."""
        own = self.decision.binding_account_id == self.decision.run_id
        return self.run_title if own else self.decision.binding_account_path

    @property
    def place(self) -> DecisionCursor:
        """The cursor of this decision."""
        return DecisionCursor(self.decision.created_at, self.decision.run_id, self.decision.position)
