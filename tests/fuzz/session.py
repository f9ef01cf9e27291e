"""A fuzz: so many requests, one after the other and at times several at once, and what became of them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from app.ledger.permissions import Role
from tests.api.answer_validation import check_answer
from tests.api.operations import OPERATIONS
from tests.fuzz.known_objects import ORGANISATIONS, KnownObjects
from tests.fuzz.requests import Asked, Requests
from tests.fuzz.soundness import problems
from tests.servers import LiveServer

AT_ONCE = 4
SERVER_ERROR = 500


@dataclass
class Tally:
    """What became of a fuzz.

    Args:
        seed: of it.
        statuses: how many answers of each.
        taken: how many requests of each operation were carried out.
        faults: answers that no request may get, and what is unsound, each with what was asked.
    """

    seed: int
    statuses: Counter[int] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """A few lines for a person."""
        counts = ", ".join(f"{status}: {number}" for status, number in sorted(self.statuses.items()))
        failed = sum(number for status, number in self.statuses.items() if status >= SERVER_ERROR)
        lines = [
            f"seed {self.seed}: {sum(self.statuses.values())} requests; {counts}",
            f"{failed} answers of 500 and more; {len(self.taken)} of {len(OPERATIONS)} operations carried out",
            f"{len(self.faults)} faults",
        ]
        return "\n".join([*lines, *self.faults[:20]])


class Session:
    """Sends requests to one server.

    Args:
        server: running; both organisations were founded.
        seed: decides what is asked, as far as the answers do not.
        tell: is given a line after each verification.
    """

    def __init__(self, server: LiveServer, seed: int, tell: Callable[[str], None]) -> None:
        self.tally = Tally(seed)
        self._tell = tell
        self._server = server
        self._choice = random.Random(seed)  # noqa: S311 - repeatable
        self._world = KnownObjects(self._choice)
        self._requests = Requests(self._world)
        self._cookies: dict[str, str] = {}

    def run(self, requests: int, check_every: int) -> Tally:
        """Send so many requests.

        Args:
            requests: how many.
            check_every: requests between two verifications; there is one at the end in any case.

        Returns:
            What became of them.
        """
        with self._clients() as client, ThreadPoolExecutor(AT_ONCE) as threads:
            self._sign_in(client)
            for asked in self._requests.first():
                self._note(asked, self._sent(client, asked))
            sent, checked = 0, 0
            while sent < requests:
                several = AT_ONCE if self._choice.randrange(25) == 0 else 1
                together = [self._requests.next()] * several
                if several > 1 and self._choice.random() < 0.5:
                    together = [self._requests.next() for _ in together]
                answers = threads.map(lambda each: self._sent(client, each), together)
                for each, answer in zip(together, answers, strict=True):
                    self._note(each, answer)
                sent += several
                if sent - checked >= check_every:
                    self._check(sent)
                    checked = sent
            if checked < sent:
                self._check(sent)
        return self.tally

    @contextmanager
    def _clients(self) -> Iterator[httpx2.Client]:
        limits = httpx2.Limits(max_connections=AT_ONCE)
        with httpx2.Client(base_url=self._server.url, timeout=60, trust_env=False, limits=limits) as client:
            yield client

    def _sign_in(self, client: httpx2.Client) -> None:
        for organisation in ORGANISATIONS:
            for role in Role:  # each has its key before anything is asked
                self._server.key(str(role), organisation)
            form = {"key": self._server.key("admin", organisation)}
            reply = client.post(
                "/sign-in", data=form, headers={"Sec-Fetch-Site": "same-origin", "Origin": self._server.url}
            )
            assert reply.status_code == httpx2.codes.SEE_OTHER, reply.text
            self._cookies[organisation] = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            client.cookies.clear()

    def _sent(self, client: httpx2.Client, asked: Asked) -> httpx2.Response | Exception:
        headers = dict(asked.headers)
        if asked.role is not None and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self._server.key(asked.role, asked.organisation)}"
        if asked.page:
            headers["Cookie"] = self._cookies[asked.organisation]
        failed: Exception | None = None
        for _ in range(2):  # a connection that was kept may have been closed since, which is no fault
            try:
                return client.request(asked.method, asked.path, content=asked.content, headers=headers)
            except httpx2.HTTPError as error:
                failed = error
        assert failed is not None
        return failed

    def _note(self, asked: Asked, answer: httpx2.Response | Exception) -> None:
        if isinstance(answer, Exception):
            self._fault(asked, f"no answer: {answer!r}")
            return
        self.tally.statuses[answer.status_code] += 1
        if answer.status_code >= SERVER_ERROR:
            self._fault(asked, f"{answer.status_code} {answer.text[:500]}")
            return
        kind = answer.headers.get("content-type", "").partition(";")[0]
        path = answer.request.url.path
        body = answer.json() if answer.content and kind.endswith("json") else answer.text or None
        parsed = kind != "text/plain"  # what is no HTTP is answered before the service sees it
        if path.startswith("/v1/") and asked.method != "HEAD" and parsed:
            try:
                check_answer(asked.method, path, answer.status_code, kind, body)
            except AssertionError as error:
                self._fault(asked, f"not as documented: {str(error)[:500]}")
        if answer.is_success:
            self._world.learn(asked.organisation, body)
            found = (each.id for each in OPERATIONS if each.takes(asked.method, path))
            self.tally.taken.update(found)

    def _fault(self, asked: Asked, what: str) -> None:
        self.tally.faults.append(
            f"{asked.method} {asked.path[:200]} as {asked.role} of {asked.organisation}, {asked.headers}, "
            f"{(asked.content or b'')[:400]!r}: {what}"
        )

    def _check(self, sent: int) -> None:
        found = problems(self._server.database_url)
        self.tally.faults += [f"after {sent} requests: {problem}" for problem in found]
        self._tell(f"{sent} requests, {len(self.tally.faults)} faults")
