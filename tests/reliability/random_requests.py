"""Random requests of two organisations: as they should be, or damaged."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.api.operations import GUARDED, NOWHERE, Operation, valid_body
from tests.api.test_endpoints import STRANGE_IDS
from tests.api.test_wrong_values import MEMBERS, WRONG
from tests.api.trainer import LOUD, gaussian
from tests.ledgers import ORGANISATIONS

JSON = dict[str, Any]

EVENTS: Final[list[JSON]] = [
    *(gaussian(5.0), gaussian(20.0), LOUD, {"type": "laplace", "epsilon": 0.1}, {"type": "zcdp", "rho": 1e-3}),
    *({"type": "epsilon_delta", "epsilon": 0.05}, {"type": "epsilon_delta", "epsilon": 0.02, "delta": 1e-8}),
    {"type": "poisson_sampled", "sampling_probability": 0.01, "event": gaussian(1.1)},
    {"type": "poisson_sampled", "sampling_probability": 0.05, "event": {"type": "laplace", "noise_multiplier": 20.0}},
    {"type": "decay", "mode": "exp", "decay_rate": 1e-3, "steps": 20, "event": LOUD},
]
ODD: Final = (
    *(*WRONG, 10**400, float("nan"), "\x00", "\ud800", "\u202e\u200b", "\U0001f600" * 999, "e\u0301", "' OR 1=1"),
)
UNKNOWN: Final = "run_000000000000000"
_numbers = itertools.count()


@dataclass(frozen=True)
class Request:
    """A request; `role` is that of the organisation's key, empty: nobody's, and `cut`: half of it arrives before."""

    organisation: str
    method: str
    path: str
    content: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    role: str = "admin"
    cut: bool = False


@dataclass
class Requests:
    """Requests by dice about what organisations have: `ids` by organisation and prefix, and `attempts` of runs."""

    dice: random.Random
    ids: Mapping[tuple[str, str], Sequence[str]]
    attempts: Mapping[str, int]

    def valid(self, owner: str) -> Request:
        """Make a request as it should be, though what it is about may have ended, or be spent."""
        if self.dice.random() < 0.1:
            return Request(owner, "GET", self._placed(self._operation("GET").path, owner))
        path, body = self._asked(owner)
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"key-{next(_numbers)}", "If-Match": "*"}
        role = "privacy_officer" if path.endswith("/approve") else "admin"
        return Request(owner, "POST", f"/v1/{path}", json.dumps(body).encode(), tuple(headers.items()), role)

    def _asked(self, owner: str) -> tuple[str, JSON]:
        dice, events, budget = self.dice, self._counted(), self._id(owner, "pop", "bud", "bud")
        run, plan = self._id(owner, "run", newest=40), self._id(owner, "res")
        attempt, parts = {"attempt": self.attempts.get(run, 1)}, dice.choice((1, 2))
        planned = {"planned": [*events, {"event": dice.choice(EVENTS)}][-parts:]}
        account = {"name": f"a{next(_numbers)}", "limit": self._limit(0.3, 1.0, 4.0)} | dice.choice(({}, {}, planned))
        split: JSON = {"composition": "parallel", "attestation": "By a hash.", "max_partitions_per_unit": parts}
        account |= dice.choice(({}, {}, {}, split))
        relation = dice.choice(("add_or_remove_one", "replace_one"))
        assumed = {"replacement_assumption": "stay_in_their_parts"}
        population = account | {"privacy_unit": "user", "neighboring_relation": relation}
        population |= assumed if "composition" in account and relation == "replace_one" else {}
        each = {"charging_mode": "each_run"}
        sweep = {"charging_mode": "repeat_and_select", "trials": {"events": [{"event": LOUD}], "mean": 3.0}}
        stepped = dice.choice(({"events": events}, events[0], {"count": dice.randint(1, 9)}, {}))
        state = dice.choice(("pause", *["resume"] * 5, "complete", "abort", "attempts", "attempts"))
        own = dice.choice(({}, {}, {"limit": self._limit(0.1, 0.5)}))
        budgets = dice.choice(([budget], [budget], [budget, self._id(owner, "pop", "bud")]))
        limit = {"limit": self._limit(0.05, 0.5, 1.0, 4.0), "reason": "The board has met."}
        ways: list[tuple[int, str, JSON]] = [
            (18, f"runs/{run}/steps", stepped | attempt | dice.choice(({}, {"on_exceed": "truncate"}))),
            (1, f"runs/{run}/steps?dry_run=true", stepped | attempt),
            (4, "runs", {"name": "model", "event": dice.choice(EVENTS), "budgets": budgets} | own),
            (3, "budgets", account | {"parent": self._id(owner, "pop", "bud")}),
            (1, "populations", population),
            (4, f"runs/{run}/reservations", {"events": events, "lease_seconds": dice.choice((1, 3600))} | attempt),
            (2, f"reservations/{plan}/commit", {"steps_executed": dice.choice((0, 1, 5, 60))}),
            (2, f"reservations/{plan}/{dice.choice(('void', 'claim', 'renew'))}", {}),
            (3, f"runs/{run}/{state}", {}),
            (2, f"accounts/{self._id(owner, 'pop', 'bud', 'run')}/limit", limit),
            (1, f"proposals/{self._id(owner, 'prp')}/approve", {}),
            (2, f"accounts/{dice.choice((budget, run))}/{dice.choice(('archive', 'unarchive'))}", {}),
            (1, "experiments", {"name": f"s{next(_numbers)}", "budget": budget} | dice.choice((sweep, each))),
        ]
        ways = [way for way in ways if UNKNOWN not in str(way)]
        [(_, path, body)] = dice.choices(ways, [weight for weight, *_ in ways])
        return path, body

    def _operation(self, *methods: str) -> Operation:
        return self.dice.choice([each for each in GUARDED if each.method in methods or not methods])

    def _id(self, owner: str, *prefixes: str, newest: int = 12) -> str:
        ids = self.ids.get((owner, self.dice.choice(prefixes)), ())[-newest:]
        return self.dice.choice(ids or [UNKNOWN])

    def _limit(self, *epsilons: float) -> JSON:
        return {"epsilon": self.dice.choice(epsilons), "delta": 1e-5}

    def _counted(self) -> list[JSON]:
        events = self.dice.sample(EVENTS, self.dice.randint(1, 3))
        return [{"event": event, "count": self.dice.choice((1, 1, 1, 2, 5, 60))} for event in events]

    def _placed(self, path: str, *owners: str) -> str:
        """Fill in ids of some organisations, or of nobody; never those of keys, which would be revoked."""
        ids = {}
        for name, nowhere in NOWHERE.items():
            prefix = self.dice.choice(("pop", "bud", "run")) if name == "account_id" else nowhere.partition("_")[0]
            known = prefix != "key" and self.dice.random() < 0.9
            strange = self.dice.choice((nowhere, *STRANGE_IDS[: len(STRANGE_IDS) * (len(owners) - 1)]))
            ids[name] = self._id(self.dice.choice(owners), prefix) if known else strange
        return path.format(**ids)

    def damaged(self, request: Request) -> Request:
        """Damage a request, or one of any operation of the document, or make a member of its body as it must not be."""
        dice, operation = self.dice, self._operation()
        if dice.random() < 0.5:
            body = valid_body(operation) or {}
            if dice.random() < 0.5 and (members := MEMBERS.get(operation.id)):
                body = dice.choice(list(dice.choice(members).wrong(len(WRONG))) or [body])
            content = b"" if operation.method == "GET" else json.dumps(body).encode()
            path = self._placed(operation.path, *ORGANISATIONS)
            request = replace(request, method=operation.method, path=path, content=content)
        content, headers = request.content, request.headers
        twice = dice.choice((*headers, ("Authorization", "Bearer x")))
        query = dice.choice(("x=1", "limit=-1", "dry_run=maybe", "%00"))
        ways = [
            request,
            replace(request, cut=bool(content)),
            replace(request, content=content[: dice.randrange(len(content) + 1)]),
            replace(request, method=dice.choice(("PUT", "DELETE", "PATCH", "GET", "POST", "TRACE", "FROB"))),
            replace(request, headers=(*headers, twice)),
            replace(request, role=dice.choice(("", "viewer", "trainer"))),
            replace(request, organisation=dice.choice(ORGANISATIONS)),
            replace(request, path=f"{request.path}?{query}"),
            *[replace(request, content=json.dumps(self._mutated(json.loads(content or b"{}"))).encode())] * 4,
        ]
        return dice.choice(ways)

    def _mutated(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Change one place."""
        if not value or not isinstance(value, dict | list) or self.dice.random() < 0.1:
            return self.dice.choice(ODD)
        if isinstance(value, list):
            place = self.dice.randrange(len(value))
            return [*value[:place], self._mutated(value[place]), *value[place + 1 :]]
        name = self.dice.choice(list(value))
        without = {key: of for key, of in value.items() if key != name}
        return self.dice.choice((without, without | {"x": 1}, *[value | {name: self._mutated(value[name])}] * 5))
