"""Steps a second on a cluster and on one PostgreSQL server, by the same load."""

from collections.abc import Sequence
from typing import Final

from benchmarks.load import Requests, request
from benchmarks.servers import EVENT, Server
from benchmarks.throughput import rounds, table
from tests.reliability.clients import open_budget
from tests.servers import LiveServer

EPSILON: Final = 2_000.0
SECONDS: Final = 2.0
ROUNDS: Final = 5

LOADS: Final = {
    "single steps, 64 connections, 4 organisations": (64, 4),
    "single steps, 64 connections, 1 organisation": (64, 1),
    "single steps, 1 connection": (1, 1),
}
"""Numbers of connections and of organisations, by title."""


def compare(services: dict[str, tuple[LiveServer, Sequence[str]]]) -> None:
    """Measure services in turn and print a table for each load; the first service is the yardstick.

    Args:
        services: by name, each with the names of its organisations.
    """
    for number, (title, (connections, organisations)) in enumerate(LOADS.items()):
        named = [
            (name, _server(service, names[0]), _requests(service, names[:organisations], connections, number))
            for name, (service, names) in services.items()
        ]
        table(title, rounds(named, SECONDS, ROUNDS))


def _server(service: LiveServer, organisation: str) -> Server:
    assert service.process is not None, "it runs"
    return Server(service.process.pid, service.port, service.client("admin", organisation))


def _requests(service: LiveServer, names: Sequence[str], connections: int, number: int) -> Requests:
    """Build the requests of each connection, which has a run of its own; the connections share the organisations."""
    found = []
    for name in names:
        headers = {"Authorization": f"Bearer {service.key('admin', name)}"}
        with service.client("admin", name) as http:
            budget = open_budget(http, f"load{number}", EPSILON)
            for _ in range(connections // len(names)):
                made = http.post("/v1/runs", json={"name": "r", "budget": budget, "event": EVENT})
                path = f"/v1/runs/{made.raise_for_status().json()['id']}/steps"
                found.append([request(path, {"count": 1}, headers)])
    return found
