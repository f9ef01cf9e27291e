"""Verify an export of `epsilon-ledger export` with Python's standard library alone.

It checks the hash chain of every run, sums up every charge at the cost table's prices (of disjoint parts, the largest
losses) and what it uses up of plans, and compares the sums with the balance of every account, and its limit with those
in decisions. It prints the first discrepancy and exits with status 1.

    epsilon-ledger export --population mimic > mimic.jsonl
    python verify_export.py mimic.jsonl
    epsilon-ledger export --run run_… | python verify_export.py -
    python verify_export.py mimic.jsonl --seen 5f0c…   # a head recorded earlier, all 64 digits, is still
                                                       # in its chain
"""

import argparse
import base64
import hashlib
import json
import math
import re
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Line = dict[str, Any]
Curve = tuple[list[int], int]
"""Integer values for every order, with the exact losses behind them, and an integer delta."""

PER_NAT = 10**40 * math.lcm(*range(1, 1001)) ** 2
UNBOUNDED = [2**19 * PER_NAT, 2**128 * PER_NAT, 2**128 * PER_NAT]
"""A pure loss, a rho and a squared mu without a bound."""

STEPS_TAKEN = {"admitted", "reported"}
CHARGED = STEPS_TAKEN | {"forfeited"}
OPENINGS = {"population.created", "budget.created", "run.created"}
"""Audit events that create an account."""
FORMAT = 1


class BadRowError(Exception):
    """The first row with a discrepancy."""


def main() -> int:
    """Verify a file, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="what `epsilon-ledger export` wrote; - for standard input")
    parser.add_argument("--seen", action="append", default=[], metavar="HASH", help="a head that was noted earlier")
    options = parser.parse_args()
    for head in options.seen:
        if not re.fullmatch("[0-9a-fA-F]{64}", head):
            print(f"--seen {head} is not a whole hash; give all of its 64 hexadecimal digits.", file=sys.stderr)
            return 2
    try:
        with open(0 if options.file == "-" else options.file, encoding="utf-8") as lines:  # noqa: PTH123 - a descriptor, too
            export = Export(lines)
            export.verify(options.seen)
    except BadRowError as error:
        print(f"NOT SOUND: {error}.")
        return 1
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        name = "standard input" if options.file == "-" else options.file
        print(f"{name} cannot be read as an export: {type(error).__name__}: {error}.", file=sys.stderr)
        return 2
    decisions = sum(run["decisions"] for run in export.runs.values())
    accounts = sum(account["complete"] for account in export.accounts.values())
    print(f"Sound: {accounts} balances recomputed and {decisions} decisions of {len(export.runs)} chains walked.")
    for run in export.runs.values():
        print(f"{run['id']}  {run['decisions']} decisions  head {run['chain_head']}")
    for head in options.seen:
        position, run_id = export.hashes[head.lower()]
        print(f"seen: decision {position} of {run_id}")
    return 0


class Export:
    """Contents of an export, checked while reading."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.prices: dict[tuple[str, str, int], Curve] = {}
        self.plan_costs: dict[str, dict[str, list[int]]] = defaultdict(dict)
        self.accounts: dict[str, Line] = {}
        self.runs: dict[str, Line] = {}
        self.reservations: dict[str, Line] = {}
        self.hashes: dict[str, tuple[int, str]] = {}
        self.chains: dict[str, Chain] = {}
        self.limits: dict[str, list[Any]] = {}
        self.opened: dict[str, Line] = {}
        self.revoked: dict[str, Counter[str]] = defaultdict(Counter)
        self.audit_events = 0
        self.ended = False
        readers: dict[str, Callable[[Line], None]] = {
            "header": self._header,
            "event": self._event,
            "price": self._price,
            "plan_cost": lambda line: self.plan_costs[line["account"]].update({line["fingerprint"]: line["used"]}),
            "account": lambda line: self.accounts.update({line["id"]: line}),
            "run": self._run,
            "reservation": lambda line: self.reservations.update({line["id"]: line}),
            "audit_event": self._audit_event,
            "decision": self._decision,
            "end": self._end,
        }
        self.lines = 0
        for text in lines:
            self.lines += 1
            line = json.loads(text)
            if (self.lines == 1) != (line["type"] == "header") or self.ended:
                raise BadRowError(f"line {self.lines} is not in its place")
            readers[line["type"]](line)
        if not self.ended:
            raise BadRowError(f"the file ends after line {self.lines}, before its end")

    def verify(self, seen: Iterable[str]) -> None:
        """Compare the sums with the accounts, runs and reservations."""
        self._check_acts()
        for chain in self.chains.values():
            chain.check_end()
        for reservation in self.reservations.values():
            self._check_reservation(reservation)
        self.added = {"spent": self._spent(), "held": self._held()}
        for account in self.accounts.values():
            if account["complete"]:
                self._check_balance(account)
        for head in seen:
            if head.lower() not in self.hashes:
                raise BadRowError(f"hash {head} is in no chain: the decisions that it stands for were changed")

    def _check_balance(self, account: Line) -> None:
        """Compare a balance; of parallel children spent and held together, because the largest child decides."""
        name = f"account {account['path']} ({account['id']})"
        spent, held, composed = self._value(account)
        if spent != _curve(account, "spent"):
            raise BadRowError(f"{name}: its spent curve is not the sum of its rows")
        kept = _curve(account, "held")
        if self._sum([spent, kept]) != self._sum([spent, held]) or (not composed and kept != held):
            raise BadRowError(f"{name}: its held curve is not the sum of its rows")
        for owner, (used, reserved) in account["plan_usage"].items():
            spent, held, composed = self._value(account, owner)
            total = self._sum([(used, 0), (reserved, 0)])
            if spent[0] != used or self._sum([spent, held]) != total or (not composed and held[0] != reserved):
                raise BadRowError(f"{name}: what it has used up of the plan of {owner} is not the sum of its rows")

    def _value(self, account: Line, owner: str | None = None) -> tuple[Curve, Curve, bool]:
        """Return an account's spent and held curves, and whether it has disjoint children.

        With an `owner`, return what it has used up of that account's plan, and holds.
        """
        if _is_parallel(account):
            parts = [self._value(child, owner)[:2] for child in self._children(account)]
            most = account["max_partitions_per_unit"] * (2 if account["neighboring_relation"] == "replace_one" else 1)
            zero = self._cost(account, {}, owner)
            lost = self._largest(zero, [spent for spent, _ in parts], most)
            total = self._largest(zero, [self._sum(part) for part in parts], most)
            # Where no more can be counted, whatever is held besides is as much.
            highest = self._highest(total[0])
            rest = [b if b == top else b - a for a, b, top in zip(lost[0], total[0], highest, strict=True)]
            return lost, (rest, self.exhausted if total[1] == self.exhausted else total[1] - lost[1]), True
        inner = [self._value(part, owner) for part in self._topmost(account)]
        spent = self._sum([self._cost(account, self.added["spent"][account["id"]], owner), *(one[0] for one in inner)])
        held = self._sum([self._cost(account, self.added["held"][account["id"]], owner), *(one[1] for one in inner)])
        return spent, held, bool(inner)

    def _children(self, account: Line) -> list[Line]:
        beneath = [one for one in self.accounts.values() if one["kind"] == "budget"]
        return [one for one in beneath if account["id"] in _parents(one)]

    def _topmost(self, account: Line) -> list[Line]:
        """Return the topmost parallel accounts under an account."""
        if account["kind"] == "run":
            return []
        found = []
        for child in self._children(account):
            found.extend([child] if _is_parallel(child) else self._topmost(child))
        return found

    def _adding(self, run_id: str) -> set[str]:
        """Return the accounts above a run to which its charges add up, without disjoint parts in between."""
        found: set[str] = set()
        wanted = list(_parents(self.accounts[run_id]))
        while wanted:
            account = self.accounts[wanted.pop()]
            if account["id"] not in found and not _is_parallel(account):
                found.add(account["id"])
                wanted.extend(_parents(account))
        return found

    def _spent(self) -> dict[str, Counter[str]]:
        """Sum the charges of each account; an active reservation holds its ancestors' part."""
        spent: dict[str, Counter[str]] = defaultdict(Counter)
        for run_id, chain in self.chains.items():
            above = self._adding(run_id)
            for reservation_id, charged in chain.charged.items():
                spent[run_id] += charged
                if reservation_id is None or self.reservations[reservation_id]["status"] != "active":
                    for account_id in above:
                        spent[account_id] += charged
        return spent

    def _held(self) -> dict[str, Counter[str]]:
        """Sum the active reservations of each account: with all steps, but only the remainder for the run itself."""
        held: dict[str, Counter[str]] = defaultdict(Counter)
        for reservation in self.reservations.values():
            if reservation["status"] == "active":
                above = self._adding(reservation["run"])
                for item in reservation["items"]:
                    held[reservation["run"]][item["fingerprint"]] += item["count"] - item["used"]
                    for account_id in above:
                        held[account_id][item["fingerprint"]] += item["count"]
        return held

    def _header(self, line: Line) -> None:
        if line["format"] != FORMAT:
            raise BadRowError(f"the export has format {line['format']}; this script reads format {FORMAT}")
        self.organisation: str = line["organisation"]
        self.audit_head = hashlib.sha256(_canonical({"audit_log_of": self.organisation})).digest()
        self.exhausted: int = line["exhausted"]

    def _event(self, line: Line) -> None:
        if hashlib.sha256(line["canonical"].encode()).hexdigest() != line["fingerprint"]:
            raise BadRowError(f"event {line['fingerprint']}: its description has another fingerprint")

    def _price(self, line: Line) -> None:
        key = (line["fingerprint"], line["neighboring_relation"], line["grid_version"])
        self.prices[key] = (_values(line["curve"]), line["delta"])

    def _run(self, line: Line) -> None:
        self.runs[line["id"]] = line
        self.chains[line["id"]] = Chain(self.organisation, line)

    def _decision(self, line: Line) -> None:
        entry = line["entry"]
        self.chains[entry["run_id"]].add(entry, line["hash"])
        self.hashes[line["hash"]] = (entry["position"], entry["run_id"])
        governing = self.accounts[entry["run_id"]]
        while not governing["limits"][-1] and _parents(governing):  # its own, or the nearest above its first budget
            governing = self.accounts[_parents(governing)[0]]
        named = {entry["limit_unit"]: entry["limit_value"], "delta": entry["limit_delta"]}
        self._check_limit(governing, entry, named)
        if entry["refusal_details"] is not None:
            refusing = self.accounts[entry["binding_account_id"]]
            self._check_limit(refusing, entry, json.loads(entry["refusal_details"])["limit"])

    def _check_limit(self, account: Line, entry: Line, limit: Line) -> None:
        """Check the limit in a decision: the run's governing limit, and of a refusal the refusing account's."""
        if {"delta": 0.0} | limit not in [each and {"delta": 0.0} | each for each in account["limits"]]:
            [unit] = limit.keys() - {"delta"}
            words = f"{unit} {limit[unit]} at delta {limit.get('delta', 0.0)}"
            raise BadRowError(
                f"account {account['path']} ({account['id']}): its limit was never {words}, which decision "
                f"{entry['position']} of run {entry['run_id']} names"
            )

    def _audit_event(self, line: Line) -> None:
        """Check an entry of the organisation's chain, which has all limits."""
        entry = line["entry"]
        head = hashlib.sha256(self.audit_head + _canonical(entry, ascii_only=False)).digest()
        if (
            entry["position"] != self.audit_events
            or entry["organisation_id"] != self.organisation
            or head.hex() != line["hash"]
        ):
            raise BadRowError(f"audit event {self.audit_events} is missing, or is not the one that was recorded")
        self.audit_events, self.audit_head = self.audit_events + 1, head
        self.hashes[line["hash"]] = (entry["position"], "the organisation's audit events")
        after = json.loads(entry["after"] or "{}")
        if entry["action"] in OPENINGS:
            self.limits[entry["subject"]] = [after["limit"]]
            self.opened[entry["subject"]] = after
        elif entry["action"].endswith(".limit_changed"):
            self.limits[entry["subject"]].append(after["limit"])
            for each in after.get("revoked", ()):
                self.revoked[each["reservation"]].update(each["steps"])

    def _check_acts(self) -> None:
        """Compare the accounts' limits and parents with the audit events."""
        for account in self.accounts.values() if self.audit_events else ():
            name = f"account {account['path']} ({account['id']})"
            if self.limits.get(account["id"]) != account["limits"]:
                raise BadRowError(f"{name}: its limits are not those that the organisation's audit events gave it")
            opened = self.opened[account["id"]]
            beneath = opened.get("budgets") or [opened["parent"]]
            if (account["parents"] or [None], account["max_partitions_per_unit"]) != (
                beneath,
                opened.get("max_partitions_per_unit"),
            ):
                raise BadRowError(f"{name}: it does not lie, or is not composed, as it was opened")

    def _end(self, line: Line) -> None:
        self.ended = True
        if line["lines"] != self.lines:
            raise BadRowError(f"the file has {self.lines} lines; {line['lines']} were written")

    def _check_reservation(self, reservation: Line) -> None:
        name = f"reservation {reservation['id']}"
        account, chain = self.accounts[reservation["run"]], self.chains[reservation["run"]]
        planned = {item["fingerprint"]: item["count"] for item in reservation["items"]}
        if self._cost(account, planned) != _curve(reservation, "reserved"):
            raise BadRowError(f"{name}: its curve is not that of its events")
        used = {item["fingerprint"]: item["used"] for item in reservation["items"]}
        left = {event: planned[event] - used[event] for event in planned}
        if Counter(used) != chain.used[reservation["id"]]:
            raise BadRowError(f"{name}: what it says to be used is not what was charged under it")
        revoked = Counter({item["fingerprint"]: item["revoked"] for item in reservation["items"]})
        if self.audit_events and revoked != self.revoked[reservation["id"]]:
            raise BadRowError(f"{name}: what it says to be revoked is not what lowered limits have revoked")
        asked = Counter(used) - chain.unasked[reservation["id"]]
        if any(asked[event] + revoked[event] > planned[event] for event in planned if revoked[event]):
            raise BadRowError(f"{name}: steps were let through that a lowered limit had revoked")
        forfeited = Counter(left) if reservation["status"] == "forfeited" else Counter[str]()
        if forfeited != chain.forfeited[reservation["id"]]:
            raise BadRowError(f"{name}: what is left of it is not what was forfeited")
        executed = sum(used.values()) if reservation["status"] == "committed" else None
        if reservation["steps_executed"] != executed or (reservation["status"] == "voided" and any(used.values())):
            raise BadRowError(f"{name}: what was executed is not what was charged under it")

    def _cost(self, account: Line, counts: Mapping[str, int], owner: str | None = None) -> Curve:
        """Sum the cost of repeated events, saturated; with an `owner`, what they use up of its plan."""
        if owner is not None:
            return self._plan_cost(account, counts, owner)
        values, delta = [0] * len(_values(account["spent"])), 0
        for fingerprint, count in counts.items():
            key = (fingerprint, account["neighboring_relation"], account["grid_version"])
            if key not in self.prices:
                raise BadRowError(f"account {account['path']}: event {fingerprint} was charged and has no price")
            price, price_delta = self.prices[key]
            values = self._saturated([sum_ + one * count for sum_, one in zip(values, price, strict=True)])
            delta = min(delta + price_delta * count, self.exhausted)
        return values, delta

    def _plan_cost(self, account: Line, counts: Mapping[str, int], owner: str) -> Curve:
        costs, used = self.plan_costs[owner], [0] * len(account["plan_usage"][owner][0])
        for fingerprint, count in (
            counts.items() if costs else ()
        ):  # a plan that was left before its first step has none
            if fingerprint not in costs:
                raise BadRowError(
                    f"account {account['path']}: what event {fingerprint} uses of {owner}'s plan is missing"
                )
            used = [sum_ + one * count for sum_, one in zip(used, costs[fingerprint], strict=True)]
        return used, 0

    def _sum(self, curves: Iterable[Curve]) -> Curve:
        """Sum curves, saturated."""
        values, deltas = zip(*curves, strict=True)
        whole = self._saturated([sum(column) for column in zip(*values, strict=True)])
        return whole, min(sum(deltas), self.exhausted)

    def _largest(self, zero: Curve, curves: list[Curve], most: int) -> Curve:
        """Sum the largest curves at every order."""
        values, deltas = zip(zero, *curves, strict=True)
        whole = self._saturated([sum(sorted(column, reverse=True)[:most]) for column in zip(*values, strict=True)])
        return whole, min(sum(sorted(deltas, reverse=True)[:most]), self.exhausted)

    def _saturated(self, values: list[int]) -> list[int]:
        return list(map(min, values, self._highest(values)))

    def _highest(self, values: list[int]) -> list[int]:
        """Return the highest values: of the orders at 64 bits, and of the exact losses behind them."""
        return [self.exhausted] * (len(values) - len(UNBOUNDED)) + UNBOUNDED


class Chain:
    """Hash chain of a run's decisions."""

    def __init__(self, organisation: str, run: Line) -> None:
        self.run = run
        self.name = f"run {run['id']}"
        self.head = hashlib.sha256(_canonical({"organisation": organisation, "run": run["id"]})).hexdigest()
        self.decisions = 0
        self.attempts = {line["attempt"]: line["first_step"] for line in run["attempts"]}
        self.attempt = 1
        self.next_step: int = self.attempts[1]
        self.charged: dict[str | None, Counter[str]] = defaultdict(Counter)
        self.used: dict[str | None, Counter[str]] = defaultdict(Counter)
        self.forfeited: dict[str | None, Counter[str]] = defaultdict(Counter)
        self.unasked: dict[str | None, Counter[str]] = defaultdict(Counter)
        self.taken = {
            "admitted": [self.used],
            "reported": [self.used, self.unasked],
            "forfeited": [self.forfeited],
        }

    def add(self, entry: Line, kept: str) -> None:
        """Check the next decision, and count its charges."""
        where = f"{self.name}, decision {entry['position']}"
        if entry["position"] != self.decisions:
            raise BadRowError(f"{self.name}: decision {self.decisions} is missing")
        self.head = hashlib.sha256(bytes.fromhex(self.head) + _canonical(entry)).hexdigest()
        if self.head != kept:
            raise BadRowError(f"{where}: it is not the one that was made, its hash is that of another")
        self.decisions += 1
        if entry["outcome"] not in CHARGED:
            return
        items = Counter[str]()
        for fingerprint, count in entry["items"]:
            items[fingerprint] += count
        if items.total() != entry["step_count"]:
            raise BadRowError(f"{where}: it says {entry['step_count']} steps; its charges are {items.total()}")
        if entry["outcome"] in STEPS_TAKEN:
            if entry["attempt"] > self.attempt:
                self.attempt, self.next_step = entry["attempt"], self.attempts[entry["attempt"]]
            if (entry["attempt"], entry["first_step"]) != (self.attempt, self.next_step):
                raise BadRowError(f"{where}: it does not follow the steps before it, which end at {self.next_step}")
            self.next_step += entry["step_count"]
        self.charged[entry["reservation_id"]] += items
        for taken in self.taken[entry["outcome"]]:
            taken[entry["reservation_id"]] += items

    def check_end(self) -> None:
        """Check that the chain is complete."""
        if (self.decisions, self.head) != (self.run["decisions"], self.run["chain_head"]):
            raise BadRowError(
                f"{self.name}, decision {self.decisions}: it is missing, or the head of the chain is another; "
                f"{self.run['decisions']} decisions were made"
            )
        ends = self.next_step if self.attempt == self.run["attempt"] else self.attempts[self.run["attempt"]]
        if ends != self.run["next_step"]:
            raise BadRowError(f"{self.name}: its steps end at {ends}, its next step is {self.run['next_step']}")


def _parents(account: Line) -> list[str]:
    """Return an account's parents: all charged budgets of a run."""
    parents: list[str] = account["parents"]
    return parents


def _is_parallel(account: Line) -> bool:
    return bool(account["composition"] == "parallel")


def _canonical(content: Line, *, ascii_only: bool = True) -> bytes:
    """Return the text that was hashed: of decisions in ASCII, of audit events, which have no fractions, by RFC 8785."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def _values(text: str) -> list[int]:
    data = base64.b64decode(text, validate=True)
    words = struct.unpack("<4H", data[-8:])[: len(UNBOUNDED)]
    begin = at = len(data) - 8 * (sum(words) + 1)
    losses = []
    for size, most in zip(words, UNBOUNDED, strict=True):
        losses.append(int.from_bytes(data[at : at + 8 * size], "little") if size else most)
        at += 8 * size
    return [*struct.unpack(f"<{begin // 8}q", data[:begin]), *losses]


def _curve(line: Line, what: str) -> Curve:
    return _values(line[what]), line[f"{what}_delta"]


if __name__ == "__main__":
    sys.exit(main())
