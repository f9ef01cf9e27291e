"""The client against a real server process: it outlives the server, and the page of the package is true."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epsilon_ledger import EventCount, LedgerClient, Limit, Waiting, gaussian
from epsilon_ledger._run import plan_waits
from tests.conftest import LiveServer
from tests.sdk.waits import HOUR


@pytest.fixture
def admin(live_server: LiveServer) -> Iterator[LedgerClient]:
    with LedgerClient(live_server.url, live_server.key("admin")) as made:
        yield made


def test_steps_and_waits_outlive_their_server(
    live_server: LiveServer, admin: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Waiting) -> None:
        if back.ident is None:
            live_server.kill()
            back.start()

    def come_back() -> None:
        time.sleep(0.3)
        live_server.start()
        with LedgerClient(live_server.url, live_server.key("trainer")) as other:
            other.get_run(holder.id, with_plan=True).complete(0)

    monkeypatch.setattr(plan_waits, "_LONGEST_PAUSE", 0.4)
    monkeypatch.setattr(plan_waits, "_FIRST_PAUSE", 0.1)
    limit, plan = Limit(1.0, 1e-5), [EventCount(event=gaussian(20.0), count=20)]
    back = threading.Thread(target=come_back)
    admin.create_population("p", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=limit)
    # However slowly this machine starts a server: the time decides, not the number of tries.
    with LedgerClient(live_server.url, live_server.key("trainer"), max_attempts=1_000) as client:
        holder = client.create_run("first", budget="p", plan=plan)
        run = client.create_run("second", budget="p", event=gaussian(20.0), plan=plan, wait=HOUR, on_wait=die)
        back.join()
        assert run.authorize(19).reservation == run.state.reservation
        live_server.kill()
        back = threading.Timer(0.3, live_server.start)
        back.start()
        assert run.authorize().first_step == 19
        back.join()
        run.complete(20)
        assert holder.refresh().status == "completed"


def test_example_of_package_page_trains_until_it_is_refused(
    live_server: LiveServer, admin: LedgerClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_population(
        "mimic", privacy_unit="patient", neighboring_relation="add_or_remove_one", limit=Limit(3.0, 1e-5)
    )
    admin.create_budget("icu-team", parent="mimic", limit=Limit(0.9, 1e-5))
    monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("trainer"))
    readme = Path(__file__).parents[2] / "sdk" / "README.md"
    _, example, *_ = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    released: list[None] = []
    exec(example, {"trained": lambda: False, "train_one_noisy_step": lambda: released.append(None)})  # noqa: S102
    refusal, summary = capsys.readouterr().out.splitlines()
    assert "mimic/icu-team has spent epsilon" in refusal
    assert released
    assert summary.startswith(f"{len(released)} steps, epsilon 0.")
