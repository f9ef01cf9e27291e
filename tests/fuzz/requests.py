"""The next request of a fuzz: which operation, by whom, with which body and headers."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.routing import Route

from app.ledger.permissions import Role
from tests.api.operations import APP, CONDITIONAL, OPERATIONS, Operation
from tests.fuzz.known_objects import ORGANISATIONS, SCOPED, KnownObjects
from tests.fuzz.shapes import Shapes

WEIGHTS: Final = {
    "authorizeSteps": 60.0,
    "createReservation": 12.0,
    "createRun": 10.0,
    "createBudget": 6.0,
    "commitReservation": 6.0,
    "createBlocks": 1.0,
    "changeAccountLimit": 6.0,
    "createPopulation": 3.0,
    "createVerification": 0.05,
    **dict.fromkeys(("getRunHistoryPng", "getAccountHistoryPng", "getRunStatementHtml"), 0.1),
    **dict.fromkeys(("getPopulationStatement", "getPopulationStatementHtml", "getRunStatement"), 0.2),
    **dict.fromkeys(("abortRun", "completeRun", "disableReceiver", "revokeApiKey", "pauseRun"), 0.3),
    **dict.fromkeys(("resumeRun", "approveProposal"), 3.0),
}
"""How often an operation is asked for; any other is worth 1."""

PAGES: Final = tuple(
    sorted(
        {
            route.path
            for route in APP.routes
            if isinstance(route, Route)
            and "GET" in (route.methods or ())
            and not re.match(r"/(v1/|openapi|healthz|readyz|metrics)", route.path)
        }
    )
)
"""What people see in a browser."""

HOSTILE: Final[tuple[bytes, ...]] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"x": NaN}',
    b'{"x": 1e999}',
    b'{"name": "a", "name": "b"}',
    b'{"name": "\\ud800"}',
    b'{"name": "\\u0000"}',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"event":' * 3000 + b"1" + b"}" * 3000,
    b"[" * 100_000,
    b'{"count": ' + b"9" * 5000 + b"}",
    b'{"name": "' + b"x" * 300_000 + b'"}',
)
HEADERS: Final[tuple[dict[str, str], ...]] = (
    {"Idempotency-Key": "x" * 300},
    {"Idempotency-Key": ""},
    {"If-Match": '"stale"'},
    {"If-None-Match": "*"},
    {"Content-Type": "text/plain"},
    {"Content-Encoding": "gzip"},
    {"Authorization": "Bearer key_nobody.secret"},
    {"Authorization": "Basic eDp5"},
    {"Cookie": "__Host-epsilon-ledger=%ed%a0%80; a=b"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"X-Request-ID": "a b" * 100},
    {"Range": "bytes=0-"},
    {"Accept": "application/xml"},
)
KEPT: Final = 40
"""Requests that may be sent again."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Args:
        organisation: who asks.
        role: with a key of it; None: without a key, or as a person with a cookie of an admin if `page`.
        method: of HTTP.
        path: with its query.
        content: the body; None: none.
        headers: besides the key's.
        page: whether it is sent as a browser does.
    """

    organisation: str
    role: str | None
    method: str
    path: str
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    page: bool = False


class Requests:
    """Makes requests, each by the same seed and the answers so far."""

    def __init__(self, objects: KnownObjects) -> None:
        self._world = objects
        self._choice = objects.choice
        self._weights = [WEIGHTS.get(operation.id, 1.0) for operation in OPERATIONS]
        self._sent: list[Asked] = []

    def first(self) -> Iterator[Asked]:
        """Something to begin with for each organisation: without it most of the rest is about nothing."""
        limit = {"epsilon": 8.0, "delta": 1e-5}
        unit = {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
        gaussian = {"type": "gaussian", "noise_multiplier": 20.0}
        event = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": gaussian}
        for organisation in ORGANISATIONS:
            for path, body in (
                ("populations", {"name": "first", "limit": limit} | unit),
                ("budgets", {"name": "b", "parent": "first", "limit": limit}),
                ("runs", {"name": "r", "budget": "first/b", "event": event}),
            ):
                headers = {"Content-Type": "application/json"}
                yield Asked(organisation, "admin", "POST", f"/v1/{path}", json.dumps(body).encode(), headers)

    def next(self) -> Asked:
        """The next one."""
        luck = self._choice.random()
        if luck < 0.06 and self._sent:
            return self._again()
        if luck < 0.1:
            return self._page()
        [operation] = self._choice.choices(OPERATIONS, self._weights)
        organisation = self._choice.choice((*ORGANISATIONS, ORGANISATIONS[0]))
        asked = self._of(operation, organisation)
        if luck > 0.94:
            asked = self._hostile(asked)
        elif asked.method != "GET":
            self._sent = [*self._sent, asked][-KEPT:]
        return asked

    def _of(self, operation: Operation, organisation: str) -> Asked:
        shapes = Shapes(self._world, organisation)
        names = re.findall(r"\{(\w+)\}", operation.path)
        ids = {name: self._world.some_id(organisation, *SCOPED.get(name, ("run",))) for name in names}
        path = operation.path.format(**ids) + self._query(operation, organisation)
        content = None
        if "requestBody" in operation.described:
            body = shapes.body(operation)
            if self._choice.random() < 0.15:
                body = shapes.broken(body)
            content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if operation.method == "POST" and self._choice.random() < 0.4:
            headers["Idempotency-Key"] = f"k{self._choice.randrange(10**12)}"
        if operation.id in CONDITIONAL:
            headers["If-Match"] = "*"
        role = "admin" if self._choice.random() < 0.6 else self._choice.choice([*map(str, Role)])
        return Asked(organisation, role, operation.method, path, content, headers)

    def _query(self, operation: Operation, organisation: str) -> str:
        asked = [each for each in operation.described.get("parameters", []) if each["in"] == "query"]
        chosen = [each["name"] for each in asked if self._choice.random() < 0.3]
        if self._choice.random() < 0.02:
            chosen.append("unknown")
        values: dict[str, Any] = {
            "limit": self._choice.choice((1, 50, 1000, -1, "x")),
            "after": self._choice.choice(("", "x", "MTIz", self._world.some_id(organisation, "run"))),
            "max_points": self._choice.choice((1, 2, 500, 0)),
            "since": self._choice.choice(("2020-01-01T00:00:00Z", "yesterday")),
            "dry_run": self._choice.choice(("true", "false", "maybe")),
            "status": self._choice.choice(("active", "open", "none")),
            "theme": self._choice.choice(("light", "dark")),
            "order": "desc",
            "width": self._choice.choice((300, 1, 10**6)),
        }
        found = {name: values.get(name, self._world.some_id(organisation, "run", "bud", "pop")) for name in chosen}
        return "".join(f"{'&' if place else '?'}{name}={found[name]}" for place, name in enumerate(found))

    def _page(self) -> Asked:
        organisation = self._choice.choice(ORGANISATIONS)
        path = re.sub(
            r"\{[^}]*\}",
            lambda _: self._world.some_id(organisation, "pop", "bud", "run", "prp"),
            self._choice.choice(PAGES),
        )
        query = self._choice.choice(
            ("", "", "?noise=1.1&steps=100", "?page=2", "?q=%00", "?since=x&actor=y", f"?next={'/' * 50}", "?noise=nan")
        )
        return Asked(organisation, None, "GET", path + query, headers={"Accept": "text/html"}, page=True)

    def _hostile(self, asked: Asked) -> Asked:
        how = self._choice.randrange(4)
        if how == 0 and asked.method != "GET":
            content = self._choice.choice(HOSTILE)
            return replace(asked, content=content, headers=asked.headers | {"Content-Type": "application/json"})
        if how == 1:
            return replace(asked, headers=asked.headers | self._choice.choice(HEADERS))
        if how == 2:
            return replace(asked, method=self._choice.choice(("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST")))
        return replace(asked, role=None)

    def _again(self) -> Asked:
        """Something that was sent before: as it was, by another one, or with another body under the same key."""
        asked = self._choice.choice(self._sent)
        how = self._choice.randrange(4)
        if how == 0:
            return replace(asked, role=str(self._choice.choice(list(Role))))
        if how == 1 and asked.content:
            return replace(asked, content=asked.content.replace(b"1", b"2"))
        return asked
