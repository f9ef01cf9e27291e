"""MindArmour's monitors: what they suggest, print and warn of."""

from types import SimpleNamespace
from typing import Any

import pytest

from epsilon_ledger import LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.mindarmour import PrivacyMonitorFactory, PrivacyWarning, RDPMonitor, ZCDPMonitor
from tests.sdk.fake_ledger import FakeRun
from tests.sdk.test_mindarmour import BATCH, N, build, data


def context(step: int) -> Any:  # noqa: ANN401 - as MindSpore hands it to callbacks
    return SimpleNamespace(original_args=lambda: SimpleNamespace(cur_step_num=step, cur_epoch_num=1, batch_num=20))


def monitored(admin: LedgerClient, **terms: Any) -> tuple[RDPMonitor, list[str]]:  # noqa: ANN401 - passed on
    lines: list[str] = []
    arguments = {"target_delta": 1e-5, "noise_decay_mode": None, "ledger": admin, "write": lines.append} | terms
    return PrivacyMonitorFactory.create("rdp", 1_000, 50, **arguments), lines  # type: ignore[return-value] # of 'rdp'


def test_monitor_suggests_most_epochs_within_max_delta(admin: LedgerClient) -> None:
    def cost(epochs: int) -> float:
        events = [{"event": poisson_sampled(0.05, gaussian(1.5)), "count": 20 * epochs}]
        return admin.compute_delta(events, epsilon=3.0).delta  # type: ignore[arg-type] # one event

    terms: dict[str, Any] = {"target_delta": None, "target_eps": 3.0, "max_delta": 1e-4, "orders": [2, 8.5]}
    monitor, lines = monitored(admin, **terms, per_print_times=1)
    most = monitor.max_epoch_suggest()
    assert most > 3
    assert cost(most) <= 1e-4 < cost(most + 1)
    monitor.step_end(context(20))
    assert lines == [f"epoch: 1 step: 20, delta is {cost(1):g}, eps is 3"]
    for limits, message in (
        ({"max_eps": None}, "Give max_eps with target_delta"),
        ({"target_delta": None, "target_eps": 1.0}, "Give max_delta with target_eps"),
    ):
        with pytest.raises(ValueError, match=message):
            monitored(admin, **limits)[0].max_epoch_suggest()


@pytest.mark.parametrize(("sink", "printed"), [(False, [8, 16]), (True, [20])])
def test_lines_are_printed_every_so_many_steps(admin: LedgerClient, *, sink: bool, printed: list[int]) -> None:
    monitor, lines = monitored(admin, per_print_times=8, dataset_sink_mode=sink, noise_decay_mode="Exp")
    for step in range(1, 21):
        monitor.step_end(context(step))
    assert [line.split(",")[0] for line in lines] == [f"epoch: 1 step: {step}" for step in printed]


def test_line_of_run_has_its_epsilon_and_used_share(fake_run: FakeRun) -> None:
    lines: list[str] = []
    for monitor in (RDPMonitor, ZCDPMonitor):
        with pytest.warns(PrivacyWarning):
            monitor(60_000, 32, run=fake_run, per_print_times=1, write=lines.append).step_end(context(1))
        fake_run.authorize(250, event=gaussian(2.0))
    assert [line.split(", ", 1)[1] for line in lines] == [
        "delta is 1e-05, eps is 0, 0.0 % used",
        "delta is 1e-05, eps is 62.5, 25.0 % used",
    ]


def test_monitors_warn_of_their_defaults(fake_run: FakeRun) -> None:
    with pytest.raises(ValueError, match="Who computes"):
        RDPMonitor(60_000, 32)
    with pytest.warns(PrivacyWarning) as caught:
        RDPMonitor(60_000, 32, run=fake_run)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert "target_delta=0.001 is 1/num_samples, 1.7e-05, or more" in said[0]
    assert "noise_decay_rate=6e-4 are this monitor's defaults" in said[1]
    with pytest.warns(PrivacyWarning, match="zCDP does not shrink with sampling"):
        ZCDPMonitor(N, BATCH, 1.5, 10.0, 1e-5, None, run=fake_run)
    monitor = RDPMonitor(N, BATCH, 1.0, 10.0, 1e-5, noise_decay_mode=None, run=fake_run, write=print)
    with pytest.warns(PrivacyWarning, match=r"expects noise \(1\.0, None, None\).*adds \(1\.5, None, None\)"):
        build(fake_run).train(1, data(), callbacks=[monitor])
