"""Random requests, half of them damaged, to two servers on one database: none fails, leaks or overspends."""

import json
import logging
import os
import random
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import httpx2
import pytest

from app.accounting.events import DpEvent, NeighboringRelation, event_from_dict
from app.accounting.rdp import event_curve
from app.api.problems import STATUSES
from app.ledger.accounts.account import Account
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, raw_rows
from app.persistence.repositories.limit_changes import list_limit_changes
from tests.api.operations import POSTS, PROBLEM_JSON, check_answer
from tests.ledger.ledger_model import PLACES, Entry, LedgerModel, limited_to
from tests.ledgers import ORGANISATIONS
from tests.open_databases import open_database
from tests.reliability.random_requests import JSON, Request, Requests
from tests.servers import LiveServer

REQUESTS, SEED = (int(os.environ.get(name, least)) for name, least in (("SOAK_REQUESTS", "2000"), ("SOAK_SEED", "1")))
CLIENTS, CANCELLED_SECONDS = 6, 0.004
LOG = logging.getLogger(__name__)
ID = re.compile(r"\b(?:run|bud|pop|org|res|prp|rcv|dlv|exp|ver|key)_[0-9a-f]{10,}\b")
WITH_KEY = [each for each in POSTS if "'Idempotency-Key'" in str(each.described.get("parameters"))]
Charges = Counter[tuple[str, DpEvent]]


@dataclass
class Journal:
    """What clients were answered, and what is wrong with it.

    Args:
        owners: the organisation that was told of an id first.
        events: default events of runs, as `attempts` are theirs.
        limits: the highest epsilon of each account.
        charged: by run and first step, with the reservation that the steps were taken from.
    """

    wrong: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    owners: dict[str, str] = field(default_factory=dict)
    ids: defaultdict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[str, int] = field(default_factory=dict)
    events: dict[str, JSON] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    charged: dict[tuple[str, int], tuple[str | None, Counter[DpEvent]]] = field(default_factory=dict)
    repeatable: deque[tuple[Request, httpx2.Response]] = field(default_factory=lambda: deque(maxlen=300))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request: Request, reply: httpx2.Response) -> None:
        """Compare an answer with the document and with all others, and keep what it admits."""
        with self.lock:
            code = reply.json().get("code") if reply.headers.get("content-type") == PROBLEM_JSON else ""
            self.statuses[f"{reply.status_code} {code}"] += 1
            try:
                self._check(request, reply)
                if reply.is_success and request.method == "POST":
                    self._keep(request, reply)
            except AssertionError as error:
                self.wrong.append(f"{request!s:.900}: {reply.status_code} {reply.text:.500}: {error!s:.300}")

    def _check(self, request: Request, reply: httpx2.Response) -> None:
        assert reply.status_code < 500 or (reply.status_code == 503 and "retry-after" in reply.headers)
        if request.method != "GET" or not request.content:  # the document has no GET with a body
            check_answer(reply)
        if reply.is_error and reply.content:
            assert reply.headers["content-type"] == PROBLEM_JSON
            assert STATUSES[reply.json()["code"]][0] == reply.status_code
        asked = unquote(request.path) + " " + request.content.decode(errors="replace")
        for found in sorted(set(ID.findall(reply.text)) - set(ID.findall(asked))):
            assert request.role, "nobody is told of anything"
            if found not in self.owners:
                self.owners[found] = request.organisation
                self.ids[request.organisation, found[:3]].append(found)
            assert self.owners[found] == request.organisation, "it is another organisation's"

    def _keep(self, request: Request, reply: httpx2.Response) -> None:
        answer: JSON = reply.json()
        run, proposed = answer.get("run") or answer.get("id") or "", answer.get("proposed") or {}
        self.attempts[run] = max(self.attempts.get(run, 1), answer.get("attempt") or 1)
        if "event" in answer:
            self.events[run] = answer["event"]
        if limit := answer.get("limit") or (answer.get("status") == "approved" and proposed.get("limit")):
            account = answer.get("account") or answer["id"]
            self.limits[account] = max(self.limits.get(account, 0.0), limit["epsilon"])
        if answer.get("decision") == "admitted" and not answer["dry_run"]:
            self._charge(run, answer, json.loads(request.content or b"{}"))
        if answer.get("charging_mode") == "repeat_and_select" and answer["status"] == "completed":
            self._charge(run, {"first_step": 0, "count": 1}, {})
        if any(each.takes(request.method, request.path) for each in WITH_KEY) and request.headers:
            self.repeatable.append((request, reply))

    def _charge(self, run: str, answer: JSON, body: JSON) -> None:
        left, total = answer["count"], Counter[DpEvent]()
        for item in body.get("events") or [body]:
            taken = min(left, item.get("count") or 1)
            total[event_from_dict(item.get("event") or self.events[run])] += taken
            left -= taken
        told = answer.get("reservation"), total
        known = self.charged.setdefault((run, answer["first_step"]), told)
        assert known == told, f"it was answered with {known}, too"


@dataclass
class Client:
    """A client that asks now one server, now the other."""

    servers: list[LiveServer]
    journal: Journal
    requests: Requests
    http: httpx2.Client

    def ask(self) -> None:
        """Send a new request, or one that was answered before."""
        dice, owner = self.requests.dice, self.requests.dice.choice(ORGANISATIONS)
        if dice.random() < 0.5:
            self.send(self.requests.damaged(self.requests.valid(owner)))
        elif dice.random() < 0.1 and self.journal.repeatable:
            request, first = dice.choice(self.journal.repeatable)
            again = self.send(request)
            if (again.status_code, again.content) != (first.status_code, first.content):
                self.journal.wrong.append(f"{request!s:.900}: {first.text:.500}, and then {again.text:.500}")
        else:
            self.send(self.requests.valid(owner), cancel=dice.random() < 0.05)

    def send(self, request: Request, *, cancel: bool = False) -> httpx2.Response:
        """Send a request until it is answered with something other than 503, perhaps after another server lost it."""
        headers, content = list(request.headers), request.content
        if request.role:
            headers.append(("Authorization", f"Bearer {self.servers[0].key(request.role, request.organisation)}"))
        first, second = [each.url + request.path for each in self.requests.dice.sample(self.servers, 2)]
        if request.cut:
            with suppress(ConnectionAbortedError):
                length = ("Content-Length", str(len(content)))
                self.http.request(request.method, second, content=_half(content), headers=[*headers, length])
        if cancel:
            with suppress(httpx2.ReadTimeout):
                timeout = httpx2.Timeout(120, read=CANCELLED_SECONDS)
                reply = self.http.request(request.method, second, content=content, headers=headers, timeout=timeout)
                self.journal.note(request, reply)
        for _ in range(50):
            try:
                reply = self.http.request(request.method, first, content=content, headers=headers)
            except httpx2.TransportError as error:  # a server may end an idle connection just now
                self.journal.statuses[type(error).__name__] += 1
                continue
            self.journal.note(request, reply)
            if reply.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                return reply
            time.sleep(0.2)
        raise AssertionError(f"{request!s:.900} is never answered but with 503")

    def charges(self) -> Charges:
        """Sum what runs were charged, or hold, by all answers."""
        total, taken = Charges(), defaultdict[str, Counter[DpEvent]](Counter)
        for (run, _), (reservation, items) in self.journal.charged.items():
            for event, number in items.items():
                total[run, event] += 0 if reservation else number
                taken[reservation or ""][event] += number
        for owner, prefix in list(self.journal.ids):
            for reservation in self.journal.ids[owner, prefix] if prefix == "res" else ():
                answer = self.send(Request(owner, "GET", f"/v1/reservations/{reservation}")).json()
                for item in answer["events"]:
                    event, authorized = event_from_dict(item["event"]), item["authorized"]
                    assert taken[reservation][event] <= authorized, answer
                    assert taken[reservation][event] == authorized or answer["status"] == "committed", answer
                    whole = answer["status"] in {"active", "forfeited"}
                    total[answer["run"], event] += item["count"] if whole else authorized
        return total


def _half(content: bytes) -> Iterator[bytes]:
    yield content[: len(content) // 2]
    raise ConnectionAbortedError


def unsound(journal: Journal, url: str, total: Charges) -> list[str]:
    """List accounts whose balance is not what was admitted, or more than the highest limit that they had admits."""
    with open_database(url) as database, database.read(ALL_TENANTS) as tx:
        kept = [(owner, record.account) for owner, record, _ in accounts.list_all(tx)]
        # An experiment's answer does not tell the limit that its account begins with; a change of it does.
        changes = {each.id: list_limit_changes(tx, owner, each) for owner, each in kept}
        before = {each: max((one.before.epsilon for one in found), default=0.0) for each, found in changes.items()}
        stored = [account for _, account in kept]
        budgets = {run: tuple(charged) for (_, run), charged in raw_rows.charged_budgets(tx).items()}
    models = {relation: LedgerModel(relation) for relation in NeighboringRelation}
    for account in stored:
        models[account.relation].accounts[account.id] = account
        models[account.relation].budgets |= {run: on for run, on in budgets.items() if run == account.id}
    entries: dict[str, list[Entry]] = {account.id: [] for account in stored}
    for (run, event), number in total.items():
        model = next(each for each in models.values() if run in each.budgets)
        model.curves[event] = event_curve(event, model.relation)
        for charged in {run, *(each.id for budget in budgets[run] for each in model.line(budget))}:
            entries[charged].append((run, event, number))
    return [
        f"{account}: {entries[account.id]}"
        for account in stored
        if not _agrees(
            models[account.relation],
            account,
            entries[account.id],
            max(before[account.id], journal.limits.get(account.id, 0.0)),
        )
    ]


def _agrees(model: LedgerModel, account: Account, entries: list[Entry], highest: float) -> bool:
    balance, limit = account.spent + account.held, account.limit
    if not entries:
        return balance.is_zero
    places = account.bounds().places if limit is not None else PLACES
    held = (*(int(balance.values[each]) for each in places), balance.delta)
    if held != model.value(account.id, entries, model.at(places)) or balance.exact != model.exact(account.id, entries):
        return False
    raised = limit is not None and highest > limit.epsilon
    return model.admits(limited_to(account, replace(limit, value=highest)) if limit and raised else account, entries)


@pytest.mark.soak
@pytest.mark.both_databases
def test_random_requests_to_two_servers_neither_fail_nor_leak_nor_overspend(replicas: list[LiveServer]) -> None:
    journal, began, left = Journal(), time.monotonic(), iter(range(REQUESTS))
    for role, organisation in [(role, each) for role in Role for each in ORGANISATIONS]:
        replicas[0].key(role, organisation)

    def work(number: int) -> Charges:
        dice = random.Random(f"{SEED}/{number}")  # noqa: S311 - repeatable, not secret
        with httpx2.Client(trust_env=False, verify=False, timeout=120) as http:
            client = Client(replicas, journal, Requests(dice, journal.ids, journal.attempts), http)
            for _ in left:
                client.ask()
            return client.charges() if number == CLIENTS else Charges()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))
    total = work(CLIENTS)
    found = unsound(journal, replicas[0].database_url, total)
    seconds = round(time.monotonic() - began)
    LOG.info("%s in %s s; charged %s; unsound %s", sorted(journal.statuses.items()), seconds, total.total(), len(found))
    shown = [f"{len(journal.wrong)} wrong, {len(found)} unsound", *journal.wrong[:30], *found[:9]]
    if len(shown) > 1:
        pytest.fail("\n".join(shown), pytrace=False)
    assert total.total() > 0, "nothing was charged: this proves nothing"
