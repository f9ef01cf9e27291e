"""What was sent and what was answered, and whether a ledger agrees with it (DESIGN section 7)."""

from dataclasses import dataclass, field
from typing import Any

import httpx2
from sqlalchemy import select

from app.accounting.events import event_from_dict, fingerprint
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import raw_rows
from app.persistence.tables import runs
from app.service.verification.verify import verify

Step = tuple[str, int]
"""A run, and the number of the first step that a decision is about."""

Content = tuple[Any, ...]
"""Idempotency key, events with their counts, and what the answer says of a decision."""

READING = ("epsilon", "used", "steps_remaining")


@dataclass
class Asked:
    """One request for steps, what it asks for, and every answer that was given to it."""

    run: str
    body: dict[str, Any]
    key: str | None
    items: tuple[tuple[str, int], ...]
    answers: list[httpx2.Response] = field(default_factory=list)


class Journal:
    """Everything that clients asked, with the answers; safe to use from many threads."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.events: dict[str, dict[str, Any]] = {}
        """The default event of each run."""

    def ask(self, run: str, body: dict[str, Any], key: str | None) -> Asked:
        """Note a request before it is sent."""
        listed = body.get("events") or [{"event": body.get("event"), "count": body.get("count", 1)}]
        events = [(event_from_dict(each["event"] or self.events[run]), each["count"]) for each in listed]
        asked = Asked(run, body, key, tuple((fingerprint(event), count) for event, count in events))
        self.asked.append(asked)
        return asked

    @property
    def answered(self) -> int:
        """How many requests have an answer."""
        return sum(bool(asked.answers) for asked in self.asked)

    def told(self) -> dict[Step, Content]:
        """The steps that clients were told are charged."""
        found = {}
        for asked in self.asked:
            if asked.answers and asked.answers[0].status_code == httpx2.codes.OK:
                told = asked.answers[0].json()
                key = asked.answers[0].headers.get("idempotent-replay-of", asked.key)
                content = key, asked.items, told["count"], told["next_step"], *(told[name] for name in READING)
                found[asked.run, asked.body.get("first_step", told["first_step"])] = content
        return found

    def refused(self) -> set[tuple[str | None, Any]]:
        """The keys that clients were told are refused for good, and what they asked for."""
        refusals = [each for each in self.asked if each.answers and each.answers[0].status_code != httpx2.codes.OK]
        assert {each.answers[0].json()["code"] for each in refusals} <= {"budget_exceeded"}
        return {(each.key, each.items) for each in refusals if each.key is not None}


def held(journal: Journal, db: Database) -> tuple[dict[Step, Content], set[tuple[str | None, Any]]]:
    """What a ledger has charged to the runs of a journal, and what it has refused them."""
    charged: dict[Step, Content] = {}
    refused: set[tuple[str | None, Any]] = set()
    with db.read(ALL_TENANTS) as tx:
        for run, owner in tx.execute(select(runs.c.account_id, runs.c.organisation_id)).all():
            for each in [stored.entry for stored in raw_rows.entries(tx, owner, run) if run in journal.events]:
                if each.outcome == "refused":
                    refused.add((each.idempotency_key, each.items))
                    continue
                last = each.first_step + each.step_count, *(getattr(each, name) for name in READING)
                charged[run, each.first_step] = each.idempotency_key, each.items, each.step_count, *last
    return charged, refused


def disagreements(journal: Journal, db: Database) -> list[str]:
    """Whatever does not agree: lost, charged though no client was told of it, or told in different ways."""
    told, (charged, refused) = journal.told(), held(journal, db)
    differing = sorted(step for step in {*told, *charged} if told.get(step) != charged.get(step))
    found = [f"{step}: told {told.get(step)}, held {charged.get(step)}" for step in differing]
    found += [f"{each}: was refused, but the key did not pin that" for each in sorted(journal.refused() - refused)]
    many = [each for each in journal.asked if len({(one.status_code, one.content) for one in each.answers}) > 1]
    return found + [f"{each.run}, {each.key}, {each.body}: was answered in different ways" for each in many]


def check(journal: Journal, db: Database) -> None:
    """Prove invariants 1 to 4 and 7 of a ledger against the journal of all clients of some of its runs."""
    found = verify(db)
    problems = [*found.problems, *disagreements(journal, db)]
    assert not problems, "\n".join(problems[:20])
    assert found.checked["charges"] > 0, "nothing was charged: this proves nothing"
