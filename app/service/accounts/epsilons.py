"""Epsilon of accounts, as people read it: of all that was charged so far, by the tightest accountant.

It depends on the charges and a delta alone: not on the limit, the plan, the filter or the order of the charges. It is
no bound under adaptive choices, as the limit is (`app.accounting.tightest_epsilon`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from sqlalchemy import Connection

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pricing_effort import bounded
from app.accounting.tightest_epsilon import epsilon_by_distributions
from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import AccountRecord, Counts
from app.ledger.accounts.part_counts import counts_that_matter
from app.ledger.admission.admission import governing_of
from app.ledger.errors import LedgerUnavailableError, RateLimitedError
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import dp_events
from app.persistence.repositories.part_counts import counts_under
from app.service.worker_pool import WORKER_POOL, Job

HERE: Final = 2
"""Epsilons that a thread of this process computes; of more, a worker process computes all."""

REMEMBERED: Final = 16_384


class Question(NamedTuple):
    """What an epsilon by distributions depends on; events by fingerprint."""

    relation: NeighboringRelation
    delta: float
    counts: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, relation: NeighboringRelation, delta: float, counts: Counts) -> "Question":
        """Ask for the epsilon of counts."""
        return cls(relation, delta, frozenset(counts.items()))


_KNOWN: Final[LruCache[Question, float]] = LruCache(REMEMBERED)


def read_epsilon(tx: Connection, organisation_id: str, record: AccountRecord, delta: float | None = None) -> float:
    """Read the epsilon of an account at its limit's delta, or at another one."""
    return read_epsilons(tx, organisation_id, [(record, delta)])[0]


def delta_of_run(path: Sequence[Account]) -> float:
    """Get the delta of the limit that governs the run of a path: its own, or that of the nearest account above."""
    limit = governing_of(path).limit
    assert limit is not None, "it governs"
    return limit.shown_delta


def read_epsilons(
    tx: Connection, organisation_id: str, wanted: Sequence[tuple[AccountRecord, float | None]]
) -> list[float]:
    """Read the epsilons of accounts at their limits' deltas, or at others, in a constant number of statements."""
    asked = [(record, _delta(record.account, delta)) for record, delta in wanted]
    # An account may be among them several times, with further charges.
    alternatives = [
        () if record.account.spent.is_zero else _alternatives(tx, organisation_id, record) or () for record, _ in asked
    ]
    questions = [
        [Question.of(record.account.relation, delta, each) for each in several]
        for (record, delta), several in zip(asked, alternatives, strict=True)
    ]
    found = _largest(tx, organisation_id, questions)
    return [_shown(record.account, delta, each) for (record, delta), each in zip(asked, found, strict=True)]


def read_epsilons_of(
    tx: Connection,
    organisation_id: str,
    relation: NeighboringRelation,
    delta: float,
    wanted: Sequence[Sequence[Counts]],
) -> list[float]:
    """Read the epsilons by distributions of charges, each the largest of its alternatives; infinite without any."""
    return _largest(tx, organisation_id, [[Question.of(relation, delta, each) for each in some] for some in wanted])


def _largest(tx: Connection, organisation_id: str, questions: Sequence[Sequence[Question]]) -> list[float]:
    found = _answers(tx, organisation_id, {each for several in questions for each in several})
    return [max((found[each] for each in several), default=inf) for several in questions]


def _delta(account: Account, delta: float | None) -> float:
    if delta is not None:
        return delta
    assert account.limit is not None, "of a run without a limit, the account above has the delta"
    return account.limit.shown_delta


def _shown(account: Account, delta: float, by_distributions: float) -> float:
    """Take the smaller of the Rényi conversion and of the distributions, and the limit unless it is exceeded."""
    if account.spent.is_zero:
        return 0.0
    found = min(account.rdp_epsilon(delta), by_distributions)
    if account.limit is not None and account.used() <= 1:
        found = min(found, account.limit.epsilon_at(delta))
    return found


def _alternatives(tx: Connection, organisation_id: str, record: AccountRecord) -> Sequence[Counts] | None:
    """Get the counts of an account; of disjoint parts each that may have lost most. None: they are not counted."""
    account = record.account
    if record.counts is not None:
        return [record.counts]
    return counts_that_matter(account.id, counts_under(tx, organisation_id, account.id, account.relation))


def _answers(tx: Connection, organisation_id: str, questions: Collection[Question]) -> Mapping[Question, float]:
    """Answer questions from memory, or compute them in a worker process if there are more than a few."""
    known = _KNOWN.get_many(questions)
    missing = [each for each in questions if each not in known]
    if not missing:
        return known
    events = dp_events.find_events(tx, organisation_id, {key for each in missing for key, _ in each.counts})
    answerable = [each for each in missing if all(key in events for key, _ in each.counts)]
    asked = [({events[key]: count for key, count in each.counts}, each.relation, each.delta) for each in answerable]
    found = dict(zip(answerable, _computed(organisation_id, asked), strict=True))
    _KNOWN.put_many(found.items())
    return {**dict.fromkeys(missing, inf), **known, **found}


Asked = tuple[Mapping[DpEvent, int], NeighboringRelation, float]


def _computed(organisation_id: str, asked: Sequence[Asked]) -> list[float]:
    if len(asked) > HERE:
        try:
            return WORKER_POOL.submit(f"epsilons {organisation_id}", Job(compute_epsilons, (asked,))).result()
        except (RateLimitedError, LedgerUnavailableError, PlanTooExpensiveError):
            pass  # then this thread takes its time
    return compute_epsilons(asked)


def compute_epsilons(asked: Iterable[Asked]) -> list[float]:
    """Compute epsilons by distributions, each with the work of a request; infinite where that is not possible.

    A limit on all of them together would let some depend on which others were asked for.
    """
    found = []
    for each in asked:
        with bounded():
            found.append(epsilon_by_distributions(*each))
    return found
