"""The page about noise on devices: its Python runs, and its Java draws what it says."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.conftest import LiveServer
from tests.docs.markdown import ROOT, fences

PAGE = fences((ROOT / "docs" / "how-to" / "add-noise-on-devices.md").read_text())
UNLIKELY = 1e-7
"""Below it a test of a distribution fails: of ten million right samplers one."""
DRAW = """
public final class Draw {
    public static void main(String[] arguments) {
        DeviceNoise noise = new DeviceNoise();
        StringBuilder drawn = new StringBuilder();
        for (int i = 0; i < 20000; i++) {
            drawn.append(noise.laplace(3)).append('\\n');
        }
        for (int i = 0; i < 2000; i++) {
            for (double value : noise.report(new double[] {0, 0.1, 0.9, 0, 0, 0, 0, 0, 0, 0}, 2.0, 4.0)) {
                drawn.append(value).append('\\n');
            }
        }
        System.out.print(drawn);
        for (double[] wrong : new double[][] {{0, 2, 0}, {0, 2, -1}, {0, 0, 1}, {Double.NaN, 2, 1}, {0, 2, 1e-9}}) {
            try {
                noise.report(new double[] {wrong[0]}, wrong[1], wrong[2]);
                throw new AssertionError("nothing was refused");
            } catch (IllegalArgumentException refused) {
                continue;
            }
        }
    }
}
"""


def test_rounds_on_devices_end_at_the_budget(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", live_server.url)
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", live_server.key("admin", "phones"))
    (cell,) = (block for block in PAGE if block.language == "python")
    (answer,) = (block for block in PAGE if block.language == "text")
    exec(compile(cell.text, "add-noise-on-devices.md", "exec"), {})  # noqa: S102 - our own page
    said = capsys.readouterr().out
    assert said.endswith(answer.text)
    assert re.match(r"Step 2 of run_\w+ was refused: phones has used 80 % of its limit, epsilon 5 at delta 1e-6", said)


@pytest.mark.skipif(not shutil.which("javac"), reason="no Java compiler")
def test_java_sampler_draws_laplace_noise(tmp_path: Path) -> None:
    (source,) = (block for block in PAGE if block.language == "java")
    (tmp_path / "DeviceNoise.java").write_text(source.text)
    (tmp_path / "Draw.java").write_text(DRAW)
    subprocess.run(["javac", "DeviceNoise.java", "Draw.java"], cwd=tmp_path, check=True)
    done = subprocess.run(["java", "Draw"], cwd=tmp_path, capture_output=True, text=True, check=True)
    drawn = np.array([float(line) for line in done.stdout.splitlines()])

    integers, reports = drawn[:20_000], drawn[20_000:].reshape(2_000, 10)
    values = np.arange(-12, 13)
    likely = np.tanh(1 / 6) * np.exp(-np.abs(values) / 3)
    counts = np.array([np.sum(integers == value) for value in values])
    others = [len(integers) - counts.sum(), len(integers) * (1 - likely.sum())]
    found = stats.chisquare([*counts, others[0]], [*(len(integers) * likely), others[1]])
    assert found.pvalue > UNLIKELY

    noise = (reports - np.array([0, 0.1, 0.9, *[0] * 7])).ravel()
    scale = (2 + 10 * 2.0**-20) / 4
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > UNLIKELY
    # A wrong scale would be noticed.
    assert stats.kstest(noise, stats.laplace(scale=scale / 2).cdf).pvalue < UNLIKELY
    assert np.array_equal(reports * 2**20, np.rint(reports * 2**20))
    assert np.abs(np.corrcoef(reports[:, 3:].T) - np.eye(7)).max() < 0.15
