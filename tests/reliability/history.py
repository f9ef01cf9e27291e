"""What was sent and what was answered, and whether a ledger agrees with it (DESIGN section 7)."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
from sqlalchemy import select

from app.accounting.events import event_from_dict, fingerprint
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import decision_events, decisions, runs
from app.service.verification import verify

CHARGED = {"admitted", "reported"}
READING = ("epsilon", "delta", "epsilon_limit", "steps_remaining")

Items = tuple[tuple[str, int], ...]
"""Fingerprints of events, and how often each, in order."""


@dataclass
class Asked:
    """One request for steps, and every answer that was given to it.

    Args:
        run: whose steps.
        body: as it was sent.
        key: its idempotency key, if it carried one.
        items: what it asks for.
        answers: in the order of their arrival; none if every reply was lost.
    """

    run: str
    body: dict[str, Any]
    key: str | None
    items: Items
    answers: list[httpx2.Response] = field(default_factory=list)

    @property
    def first_step(self) -> int | None:
        """The number that the request gave its first step."""
        step: int | None = self.body.get("first_step")
        return step

    @property
    def known_by(self) -> str:
        """For a person who reads what is wrong."""
        return f"{self.run}, key {self.key}, {json.dumps(self.body)}"


class Journal:
    """Everything that clients asked, with the answers; safe to use from many threads."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._events: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def registered(self, run: str, event: dict[str, Any]) -> None:
        """Note a run and its default event."""
        self._events[run] = event

    def ask(self, run: str, body: dict[str, Any], key: str | None) -> Asked:
        """Note a request before it is sent."""
        listed = body.get("events") or [{"event": body.get("event"), "count": body.get("count", 1)}]
        items = tuple(
            (fingerprint(event_from_dict(item["event"] or self._events[run])), item["count"]) for item in listed
        )
        asked = Asked(run, body, key, items)
        with self._lock:
            self.asked.append(asked)
        return asked

    @property
    def runs(self) -> set[str]:
        """Every run that was registered."""
        return set(self._events)

    @property
    def answered(self) -> int:
        """How many requests have an answer."""
        return sum(bool(asked.answers) for asked in self.asked)

    @property
    def admitted(self) -> int:
        """How many steps were acknowledged, each once."""
        steps = {
            (asked.run, response["first_step"]): response["count"]
            for asked in self.asked
            for answer in asked.answers
            if answer.status_code == httpx2.codes.OK
            for response in [answer.json()]
        }
        return sum(steps.values())


@dataclass(frozen=True)
class Kept:
    """A decision as the ledger keeps it."""

    row: Any
    items: Items

    @property
    def next_step(self) -> int:
        """The one after its last."""
        return int(self.row.first_step + self.row.step_count)


def check(journal: Journal, db: Database) -> None:
    """Prove invariants 1 to 4 and 7 of a ledger against a journal.

    Args:
        journal: of every client that asked for steps of its runs.
        db: the ledger, afterwards.

    Raises:
        AssertionError: something does not agree; it says what.
    """
    found = verify(db)
    problems = [*found.problems, *disagreements(journal, db)]
    assert not problems, "\n".join(problems[:20])
    assert found.checked["charges"] > 0, "nothing was charged: this proves nothing"


def disagreements(journal: Journal, db: Database) -> Iterator[str]:
    """Whatever does not agree between a journal and a ledger."""
    kept, ends = read_decisions(journal, db)
    yield from _gaps(kept, ends)
    by_key = {known.row.idempotency_key: known for known in kept if known.row.idempotency_key is not None}
    by_step = {(known.row.run_id, known.row.first_step): known for known in kept if known.row.outcome in CHARGED}
    for asked in journal.asked:
        yield from _answers(asked, by_key, by_step)
    yield from _phantoms(journal, kept)


def read_decisions(journal: Journal, db: Database) -> tuple[list[Kept], dict[str, int]]:
    """The decisions of the journal's runs, in order, and each run's next step."""
    with db.read(ALL_TENANTS) as tx:
        rows = tx.execute(select(decisions).order_by(decisions.c.run_id, decisions.c.position)).all()
        items: dict[tuple[str, int], Items] = {
            (row.run_id, row.position): ((row.event_fingerprint, row.event_count),) for row in rows
        }
        further: dict[tuple[str, int], dict[int, tuple[str, int]]] = defaultdict(dict)
        for row in tx.execute(select(decision_events)).mappings():
            repeats = [each if isinstance(each, list) else (each, 1) for each in json.loads(row["repeats"])]
            own = row["item"], row["count"] - sum(count for _, count in repeats)
            further[row["run_id"], row["position"]] |= {
                index: (row["event_fingerprint"], count) for index, count in (own, *repeats)
            }
        for place, indexed in further.items():
            items[place] += tuple(item for _, item in sorted(indexed.items()))
        ends = {row.account_id: row.next_step for row in tx.execute(select(runs)) if row.account_id in journal.runs}
    return [Kept(row, items[row.run_id, row.position]) for row in rows if row.run_id in journal.runs], ends


def _gaps(kept: list[Kept], ends: dict[str, int]) -> Iterator[str]:
    """Every interval once, none left out, and the run ends where they end."""
    reached = dict.fromkeys(ends, 0)
    positions: Counter[str] = Counter()
    for known in kept:
        row = known.row
        where = f"{row.run_id}, decision {row.position}"
        if row.position != positions[row.run_id]:
            yield f"{where}: {positions[row.run_id]} was expected."
        positions[row.run_id] += 1
        if row.outcome not in CHARGED:
            continue
        if row.first_step != reached[row.run_id]:
            yield f"{where}: begins at step {row.first_step}, where {reached[row.run_id]} was expected."
        if row.step_count != sum(count for _, count in known.items):
            yield f"{where}: stands for {row.step_count} steps, its events for another number."
        reached[row.run_id] = known.next_step
    for run, end in ends.items():
        if reached[run] != end:
            yield f"{run}: its decisions end at step {reached[run]}, the run at {end}."


def _answers(asked: Asked, by_key: dict[str, Kept], by_step: dict[tuple[str, int], Kept]) -> Iterator[str]:
    """Everything that a client was told is what the ledger holds, and it was told the same each time."""
    if len({(answer.status_code, answer.content) for answer in asked.answers}) > 1:
        yield f"{asked.known_by}: was answered in different ways."
    for answer in asked.answers[:1]:
        response = answer.json()
        if answer.status_code == httpx2.codes.OK:
            known = by_step.get((asked.run, response["first_step"]))
            if known is None:
                yield f"{asked.known_by}: was acknowledged, but is not in the ledger."
                continue
            key = answer.headers.get("idempotent-replay-of", asked.key)
            told = response["count"], response["next_step"], *(response[name] for name in READING)
            held = known.row.step_count, known.next_step, *(getattr(known.row, name) for name in READING)
            if known.items != asked.items or told != held:
                yield f"{asked.known_by}: the ledger holds another content."
            if known.row.idempotency_key != key or asked.first_step not in {None, response["first_step"]}:
                yield f"{asked.known_by}: the ledger holds it as another request."
        elif response["code"] == "budget_exceeded" and asked.key is not None:
            known = by_key.get(asked.key)
            if known is None or known.row.outcome != "refused" or known.items != asked.items:
                yield f"{asked.known_by}: was refused, but the key did not pin that."
        elif response["code"] != "budget_exceeded":
            yield f"{asked.known_by}: was answered {answer.text}"


def _phantoms(journal: Journal, kept: list[Kept]) -> Iterator[str]:
    """Nothing is charged that nobody asked for, and nothing twice."""
    keyed = {asked.key: asked for asked in journal.asked if asked.key is not None}
    numbered = {(asked.run, asked.first_step, asked.items) for asked in journal.asked if asked.key is None}
    for known in kept:
        row = known.row
        if row.outcome not in CHARGED:
            continue
        if row.idempotency_key is None:
            wanted = (row.run_id, row.first_step, known.items) in numbered
        else:
            asked = keyed.get(row.idempotency_key)
            wanted = asked is not None and asked.run == row.run_id and asked.items == known.items
        if not wanted:
            yield f"{row.run_id}, decision {row.position}: nobody asked for it."
