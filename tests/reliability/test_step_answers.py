"""A server process answers plain steps on their connections as it answers all others: the same bytes."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.api.step_routes import JSON, NAMED, Client, request
from tests.reliability.clients import open_budget
from tests.servers import LiveServer

TWICE = ((b"x-twice", b"1"), (b"x-twice", b"2"))
"""A repeated header makes a request unusual, and changes nothing of its answer."""

KEY = (b"idempotency-key", b"key-of-%b")
PROXY = ((b"x-forwarded-for", b"192.0.2.1"), (b"x-forwarded-proto", b"https"))
STORY: list[tuple[bytes, tuple[tuple[bytes, bytes], ...], int]] = [
    (b"{}", (), 200),
    (b'{"count": 3, "first_step": 1}', (), 200),
    (b'{"count": 3, "first_step": 1}', (), 200),
    (b'{"count": 2, "first_step": 1}', (), 409),
    (b'{"first_step": 9}', (), 409),
    (b'{"count": 2}', (KEY,), 200),
    (b'{"count": 2}', (KEY,), 200),
    (b'{"count": 3}', (KEY,), 422),
    (b'{"count": 1000000000}', (), 403),
    (b'{"count": 1000000000}', PROXY, 403),
    (b'{"count": 5, "event": {"type": "gaussian", "noise_multiplier": 321.5}}', PROXY, 200),
    (b'{"attempt": 2}', (), 412),
    (b'{"count": 0}', (), 422),
    (b"{", (), 422),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("steps"), module_database_url)
    live.start()
    yield live
    live.stop()
    assert "Traceback" not in live.log()


def _run(server: LiveServer, population: str) -> tuple[str, list[str]]:
    """A run under a population of its own, and all names that differ from another one's."""
    with server.client("admin") as http:
        budget = open_budget(http, population, 5.0)
        run = http.post(
            "/v1/runs", json={"name": "m", "budget": budget, "event": {"type": "gaussian", "noise_multiplier": 90.0}}
        )
        accounts = http.get(f"/v1/runs/{run.raise_for_status().json()['id']}").json()
        names = re.findall(r"(?:run|bud|pop)_\w+", json.dumps(accounts))
    return str(run.json()["id"]), [*sorted(set(names), key=lambda name: (name[:3], name)), population]


def test_every_answer_is_the_usual_one(server: LiveServer) -> None:
    who = (b"authorization", f"Bearer {server.key('trainer')}".encode())
    told = []
    for population, more in (("plain", ()), ("usual", TWICE)):
        run, names = _run(server, population)
        answers = []
        for content, given, status in STORY:
            headers = [(name, value.replace(b"%b", population.encode())) for name, value in given]
            with Client(server.port) as client:
                answer = client.ask(request(f"/v1/runs/{run}/steps", content, who, JSON, NAMED, *headers, *more))
            assert answer.status == status, answer
            text = re.sub(rb"date: [^\r]+", b"date: D", answer.head) + answer.body
            for place, name in enumerate(names):
                text = text.replace(name.encode(), b"<%d>" % place)
            answers.append(text)
        told.append(answers)
    assert told[0] == told[1]


def test_many_steps_of_one_packet_are_answered_in_order(server: LiveServer) -> None:
    who, (run, _) = (b"authorization", f"Bearer {server.key('trainer')}".encode()), _run(server, "pipelined")
    many = 20
    sent = [
        request(f"/v1/runs/{run}/steps", b"{}", who, JSON, *(TWICE if place % 3 == 1 else ())) for place in range(many)
    ]
    with Client(server.port) as client:
        client.ask(sent[0])
        client.send(b"".join(sent[1:]))
        answers = [client.answer() for _ in sent[1:]]
    assert [json.loads(answer.body)["first_step"] for answer in answers] == list(range(1, many))
