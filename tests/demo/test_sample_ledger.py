"""`epsilon-ledger serve --sample`: a sample organisation, alive, that leaves nothing behind."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.commands.first_admin import LINK_PATH
from app.commands.sample import reachable
from app.persistence.database import Database
from app.sample.hospital import LIVE_BUDGET, WEEKS
from app.service.auth.loopback import is_loopback
from app.service.verification.verify import verify
from tests.fork_server import ForkedProcess, service_server
from tests.polling import await_true


@dataclass(frozen=True)
class SampleServer:
    """A sample that is being served; `facts` is what the command printed."""

    process: ForkedProcess
    folder: Path
    facts: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.facts['port']}"

    def items(self, path: str, role: str = "viewer") -> list[dict[str, Any]]:
        """The first items of a list of the API."""
        headers = {"Authorization": f"Bearer {self.facts['keys'][role]}"}
        reply = httpx2.get(self.url + path, headers=headers, trust_env=False, timeout=60, verify=False)
        assert reply.status_code == HTTPStatus.OK, reply.text
        found: list[dict[str, Any]] = reply.json()["items"]
        return found

    def is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/readyz", trust_env=False, verify=False).status_code == HTTPStatus.OK
        except httpx2.TransportError:
            return False


@contextmanager
def sample_server(folder: Path, module: str = "app") -> Iterator[SampleServer]:
    """Serve the sample, with its temporary files and its log in a folder, until the block ends."""
    # Settings of a real ledger must not reach the sample.
    foreign = {"EPSILON_LEDGER_DATABASE_URL": "postgresql://nobody@nowhere.invalid/real", "TMPDIR": str(folder)}
    with (folder / "sample.log").open("wb") as log, tempfile.NamedTemporaryFile() as said:
        command = (module, "serve", "--sample", "--port", "0", "--json")
        process = ForkedProcess(
            service_server(), *command, environment=os.environ | foreign, output=said.file, errors=log, new_session=True
        )
        try:
            facts = Path(said.name)
            await_true(lambda: process.poll() is not None or facts.read_text().endswith("\n"))
            assert process.poll() is None, (folder / "sample.log").read_text()
            served = SampleServer(process, folder, json.loads(facts.read_text()))
            await_true(served.is_ready)
            yield served
        finally:
            process.kill()


@pytest.fixture(
    scope="module", params=["tests.demo.few_runs", pytest.param("app", marks=pytest.mark.soak)], ids=["few", "all"]
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleServer]:
    with sample_server(tmp_path_factory.mktemp("served"), request.param) as served:
        yield served


def test_sample_ledger_has_every_kind_of_record(served: SampleServer, request: pytest.FixtureRequest) -> None:
    runs = served.items("/v1/runs?limit=100")
    least_runs, least_days = (60, 15) if request.node.callspec.params["served"] == "app" else (25, 8)
    assert len(runs) >= least_runs
    statuses = {"active", "paused", "pending", "waiting", "completed", "aborted", "overdrawn"}
    assert {run["status"] for run in runs} == statuses
    assert len(served.items("/v1/populations")) >= 7
    assert len(served.items("/v1/budgets?limit=100")) >= 20
    for kind in ("refused", "reported", "admitted"):
        assert {each["decision"] for each in served.items(f"/v1/decisions?decision={kind}&limit=100")} == {kind}
    assert {each["kind"] for each in served.items("/v1/proposals?status=open")} == {"limit", "run"}
    times = sorted(datetime.fromisoformat(run["created_at"]) for run in runs)
    assert times[-1] - times[0] > timedelta(weeks=WEEKS - 1)
    assert len({each.date() for each in times}) >= least_days
    assert served.items("/v1/alerts", "privacy_officer")
    assert served.items("/v1/receivers", "privacy_officer")


def test_live_run_takes_steps(served: SampleServer) -> None:
    until, seen = time.monotonic() + 60, set[int]()
    while len(seen) < 3:
        assert time.monotonic() < until
        live = [run for run in served.items("/v1/runs?limit=5") if run["name"].startswith("live-")]
        seen |= {run["next_step"] for run in live}
        assert all(run["budget_path"] == LIVE_BUDGET for run in live)
        time.sleep(0.2)


def test_printed_link_signs_in(served: SampleServer) -> None:
    url = served.facts["sign_in_link"]["url"]
    assert url.startswith(f"{served.url}{LINK_PATH}#")
    with httpx2.Client(base_url=served.url, headers={"Origin": served.url}, trust_env=False, timeout=60) as http:
        assert http.post(LINK_PATH, data={"token": url}).status_code == HTTPStatus.SEE_OTHER
        for page in ("/", "/planner", "/decisions", "/audit", "/approvals", "/policies", "/keys", "/alerts"):
            assert http.get(page).status_code == HTTPStatus.OK


def test_sample_ledger_is_sound_and_leaves_nothing_behind(served: SampleServer) -> None:
    database = Database(served.facts["database"])
    assert verify(database).sound
    database.dispose()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(30) == 0
    assert [path.name for path in served.folder.iterdir()] == ["sample.log"]
    log = (served.folder / "sample.log").read_text()
    assert log.splitlines() == ["Filling a sample ledger, which takes some seconds ..."]


def test_loopback_address_is_told_from_public_ones() -> None:
    for host, loopback, seen in (
        ("127.0.0.1", True, "127.0.0.1"),
        ("localhost", True, "localhost"),
        ("0.0.0.0", False, "127.0.0.1"),  # noqa: S104 - nothing listens
        ("::", False, "::1"),
        ("ledger.example", False, "ledger.example"),
    ):
        assert (is_loopback(host), reachable(host)) == (loopback, seen)
