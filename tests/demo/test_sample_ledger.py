"""`epsilon-ledger serve --demo`: a sample organisation, alive, that leaves nothing behind."""

import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from http import HTTPStatus

import httpx2
import pytest

from app.commands.demo import reachable
from app.commands.first_admin import LINK_PATH
from app.demo.hospital import LIVE_BUDGET, WEEKS
from app.persistence.database import Database
from app.service.auth.loopback import is_loopback
from app.service.verification import verify
from tests.demo.sample_server import SampleServer, sample_server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleServer]:
    with sample_server(tmp_path_factory.mktemp("served")) as served:
        yield served


def test_sample_ledger_has_every_kind_of_record(served: SampleServer) -> None:
    runs = served.items("/v1/runs?limit=100")
    assert len(runs) >= 60
    statuses = {"active", "paused", "pending", "waiting", "completed", "aborted", "overdrawn"}
    assert {run["status"] for run in runs} == statuses
    assert len(served.items("/v1/populations")) >= 7
    assert len(served.items("/v1/budgets?limit=100")) >= 20
    for kind in ("refused", "reported", "admitted"):
        assert {each["decision"] for each in served.items(f"/v1/decisions?decision={kind}&limit=100")} == {kind}
    assert {each["kind"] for each in served.items("/v1/proposals?status=open")} == {"limit", "run"}
    times = sorted(datetime.fromisoformat(run["created_at"]) for run in runs)
    assert times[-1] - times[0] > timedelta(weeks=WEEKS - 1)
    assert len({each.date() for each in times}) > 14
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
    assert [path.name for path in served.folder.iterdir()] == ["demo.log"]
    log = (served.folder / "demo.log").read_text()
    assert log.splitlines() == ["Filling a sample ledger, which takes some seconds ..."]


@pytest.mark.parametrize(
    ("host", "loopback", "seen"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("::1", True, "::1"),
        ("localhost", True, "localhost"),
        ("0.0.0.0", False, "127.0.0.1"),  # noqa: S104 - nothing listens
        ("::", False, "::1"),
        ("192.0.2.1", False, "192.0.2.1"),
        ("ledger.example", False, "ledger.example"),
    ],
)
def test_loopback_address_is_told_from_public_ones(host: str, loopback: bool, seen: str) -> None:  # noqa: FBT001 - a parameter
    assert is_loopback(host) is loopback
    assert reachable(host) == seen
