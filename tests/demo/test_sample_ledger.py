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


def test_every_kind_of_thing_is_there(served: SampleServer) -> None:
    runs = served.items("/v1/runs?limit=100")
    assert len(runs) >= 60
    assert {run["status"] for run in runs} == {
        "active",
        "paused",
        "pending",
        "waiting",
        "completed",
        "aborted",
        "overdrawn",
    }
    assert len(served.items("/v1/populations")) >= 7
    assert len(served.items("/v1/budgets?limit=100")) >= 20
    assert {"refused", "reported", "admitted"} == {
        each["decision"]
        for kind in ("refused", "reported", "admitted")
        for each in served.items(f"/v1/decisions?decision={kind}&limit=100")
    }
    assert {each["kind"] for each in served.items("/v1/proposals?status=open")} == {"limit", "run"}
    times = sorted(datetime.fromisoformat(run["created_at"]) for run in runs)
    assert times[-1] - times[0] > timedelta(weeks=WEEKS - 1)
    assert len({each.date() for each in times}) > 14
    assert served.items("/v1/alerts", "privacy_officer")
    assert served.items("/v1/receivers", "privacy_officer")


def test_a_run_takes_steps_while_one_looks(served: SampleServer) -> None:
    until, seen = time.monotonic() + 60, set[int]()
    while len(seen) < 3:
        assert time.monotonic() < until
        live = [run for run in served.items("/v1/runs?limit=5") if run["name"].startswith("live-")]
        seen |= {run["next_step"] for run in live}
        assert all(run["budget_path"] == LIVE_BUDGET for run in live)
        time.sleep(0.5)


def test_the_printed_link_signs_in_without_a_key(served: SampleServer) -> None:
    url = served.facts["sign_in_link"]["url"]
    assert url.startswith(f"{served.url}{LINK_PATH}#")
    with httpx2.Client(base_url=served.url, headers={"Origin": served.url}, trust_env=False, timeout=60) as http:
        assert http.post(LINK_PATH, data={"token": url}).status_code == HTTPStatus.SEE_OTHER
        for page in ("/", "/planner", "/decisions", "/audit", "/approvals", "/policies", "/keys", "/alerts"):
            assert http.get(page).status_code == HTTPStatus.OK


def test_it_is_a_sound_ledger_and_leaves_nothing_behind(served: SampleServer) -> None:
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
def test_a_public_address_is_known(host: str, loopback: bool, seen: str) -> None:  # noqa: FBT001 - a parameter
    assert is_loopback(host) is loopback
    assert reachable(host) == seen
