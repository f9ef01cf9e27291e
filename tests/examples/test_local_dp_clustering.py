"""The example of local differential privacy, against a real server."""

import json
import os
import re
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from epsilon_ledger import LedgerClient, Limit
from tests.conftest import LiveServer
from tests.examples.example_runner import example, is_picture, module

SMALL = ("--repeats", "2", "--rounds", "1", "10", "--processes", "2", "--cluster-client-num", "400")


@pytest.fixture
def devices() -> ModuleType:
    return module("local_dp_devices")


@pytest.fixture
def threads(devices: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the devices in threads: their processes take seconds to start."""

    def start(command: list[str], **_: object) -> SimpleNamespace:
        first, last, limit, line = command[2:]
        given = (int(first), int(last), float(limit), Connection(os.dup(int(line))))
        (thread := Thread(target=devices.run_devices, args=given)).start()
        return SimpleNamespace(wait=thread.join)

    monkeypatch.setattr(devices, "subprocess", SimpleNamespace(Popen=start))


@pytest.mark.usefixtures("threads")
def test_score_follows_where_nothing_is_protected_and_ledger_refuses_rest(
    live_server: LiveServer, tmp_path: Path
) -> None:
    # Four collections of each series: all but the last fit.
    options = ("--laplace-eval-eps", "2", "64", "128", "--limit", "500")
    said = example(live_server, "local_dp_clustering", tmp_path / "out", *SMALL, *options)
    facts = json.loads((tmp_path / "out" / "scores.json").read_text())
    series = {(each["content"], each["epsilon"]): each for each in facts["series"]}
    noised = [("confidence", 2), ("output", 2), ("output", 64), ("output", 128)]
    assert [*series] == [("output", None), ("confidence", None), *noised]
    assert series["output", 128]["scores"] == []
    assert "A reservation of 4 steps was refused" in series["output", 128]["refusal"]
    assert series["output", 2]["scale"] == 1
    assert series["output", 64]["scale"] == pytest.approx(2 / 64)

    losses, floor = facts["losses"], facts["floor"]
    assert losses["1"] > 1.5 > losses["10"]
    assert 0.02 < floor["least"] < floor["mean"] < floor["most"] < 0.12
    # In 300 draws: 0.069 (standard deviation 0.007), then 0.503 (0.006). One round is hardly above the floor.
    for first, last in series["output", 64]["scores"]:
        assert first == pytest.approx(0.069, abs=0.04)
        assert last == pytest.approx(0.503, abs=0.04)
    ((first, last),) = series["output", None]["scores"]
    assert floor["most"] < first < last
    for scores in series["output", 2]["scores"]:
        assert scores == pytest.approx([floor["mean"]] * 2, abs=0.04)
    rises = [last - first for first, last in series["confidence", 2]["scores"]]
    assert np.mean(rises) == pytest.approx(0.41, abs=0.15)  # a standard deviation of one is 0.046
    assert re.search(r"follows +the training: .*epsilon 64", said)
    assert "epsilon 64 protects nobody" in said
    # The seed documents' bound of 1e-5 costs an epsilon that is none.
    assert re.search(r"1e-05 +4\.343e-06 +460517 +protects nobody", said)
    assert is_picture(tmp_path / "out" / "scores.png")

    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        budget = ledger.get_budget(facts["budget"])
        runs = list(ledger.list_runs(budget=facts["budget"]))
    assert facts["spent"] == budget.epsilon == pytest.approx(4 * (2 + 2 + 64), rel=0.1)
    assert budget.epsilon <= 4 * (2 + 2 + 64)
    assert [(run.status, run.next_step, run.neighboring_relation) for run in runs] == [
        ("completed", 4, "replace_one")
    ] * 3


@pytest.mark.usefixtures("threads")
def test_documents_configuration_charges_nothing_and_is_called_vacuous(live_server: LiveServer, tmp_path: Path) -> None:
    with LedgerClient(live_server.url, live_server.key("admin")) as ledger:
        limit = Limit(10.0, 1e-6)
        ledger.create_population(
            "phones", privacy_unit="client device", neighboring_relation="replace_one", size=1000, limit=limit
        )
        ledger.create_budget("scores", parent="phones", limit=limit)
        (tmp_path / "document.yaml").write_text(
            "encrypt:\n  privacy_eval_type: LAPLACE\n  laplace_eval:\n    laplace_eval_eps: 230260\n"
            "unsupervised:\n  cluster_client_num: 200\n  eval_type: CALINSKI_HARABASZ_SCORE\n"
        )
        asked = ("--budget", "phones/scores", "--config", str(tmp_path / "document.yaml"), "--processes", "2")
        few = ("--repeats", "2", "--rounds", "1")
        said = example(live_server, "local_dp_clustering", tmp_path / "out", *asked, *few, role="trainer")
        assert "epsilon 230260 is not collected" in said
        assert "would even cost 460520" in said
        assert ledger.get_budget("phones/scores").epsilon == 0
        assert "Median Calinski-Harabasz index" in said
        series = json.loads((tmp_path / "out" / "scores.json").read_text())["series"]
        assert [(each["content"], each["epsilon"]) for each in series] == [("output", None), ("confidence", None)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster-client-num", "5000"], "cluster_client_num is 5000, but it must be in [100, 1000]"),
        (["--laplace-eval-eps", "-1"], "laplace_eval_eps is [-1.0], but it must be one number above 0, or several"),
        (["--limit", "1e6"], "limit is 1e+06, but the ledger takes limits in (0, 10000]"),
        (["--repeats", "0"], "rounds, repeats and processes begin at 1"),
    ],
)
def test_wrong_configuration_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["local_dp_clustering.py", *options])
    with pytest.raises(SystemExit):
        module("local_dp_config").configuration()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("eval_type", "mean"), [("SILHOUETTE_SCORE", 0.069), ("CALINSKI_HARABASZ_SCORE", 43.6)])
def test_noise_alone_has_score_that_pages_name(eval_type: str, mean: float) -> None:
    floor = module("local_dp_clustering").floor(SimpleNamespace(devices=1000, eval_type=eval_type))
    assert floor.mean == pytest.approx(mean, rel=0.08)
    assert floor.least < floor.mean < floor.most


def test_device_answers_request_once_and_keeps_to_its_own_limit(devices: ModuleType) -> None:
    device = devices.Device(np.ones(65), limit=5.0)
    weights = np.zeros((65, 10))
    first = device.answer(devices.Request("run 0", weights, "output", 2.0))
    assert first.shape == (10,)
    assert (device.answer(devices.Request("run 0", weights, "output", 2.0)) == first).all()
    second = device.answer(devices.Request("run 1", weights, "output", 2.0))
    assert (second != first).all()
    with pytest.raises(devices.DeviceLimitError, match="epsilon 1 is left"):
        device.answer(devices.Request("run 2", weights, "output", 2.0))
    assert device.answer(devices.Request("run 3", weights, "confidence", 1.0)).shape == (1,)


def test_devices_have_no_key_and_send_nothing_beyond_their_own_limit(
    devices: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "the cloud's")
    weights = np.zeros((65, 10))
    with devices.Devices(30, 1, 3.0) as group:
        assert group.collect(devices.Request("run 0", weights, "output", 2.0)).shape == (30, 10)
        # Not before a device answers: while a process starts, the kernel may show no environment yet.
        [process] = group._processes
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"PATH=" in environment
        assert b"the cloud's" not in environment
        assert group.collect(devices.Request("run 1", weights, "output", 2.0)).shape == (0,)
        assert group.collect(devices.Request("run 2", weights, "confidence", 1.0)).shape == (30, 1)
