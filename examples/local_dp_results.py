"""Table, picture and conclusion of the example of local differential privacy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import factorial
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.stats import spearmanr

mpl.use("Agg")
import matplotlib.pyplot as plt
from local_dp_config import VACUOUS
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

TITLES = {"SILHOUETTE_SCORE": "silhouette score", "CALINSKI_HARABASZ_SCORE": "Calinski-Harabasz index"}
ENOUGH = 0.9
"""Share of series in the right order that is called following."""


@dataclass(frozen=True)
class Floor:
    """Score of reports that are noise alone: mean and range of several draws."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Series:
    """Scores of one kind of report.

    Args:
        content: `output`, or `confidence`, whose score is the mean.
        epsilon: of one report; None: without noise.
        scale: b of the noise.
        scores: one list for each repeat, one score for each round.
        refusal: why nothing was collected, or None.
    """

    content: str
    epsilon: float | None
    scale: float
    scores: list[list[float]] = field(default_factory=list)
    refusal: str | None = None

    @property
    def name(self) -> str:
        """Name in tables."""
        noise = "no noise" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return noise if self.content == "output" else f"confidence, {noise}"

    @property
    def medians(self) -> list[float]:
        """Median score of each round."""
        return [float(each) for each in np.median(self.scores, axis=0)]


@dataclass(frozen=True)
class Following:
    """How well a series' scores follow the training.

    Args:
        correlations: Spearman's rank correlation of score and falling loss, of each repeat.
        ordered: number of repeats whose scores rise in every round.
        kept: of the last score's height above the floor, as a part of that without noise.
    """

    correlations: list[float]
    ordered: int
    kept: float

    @property
    def verdict(self) -> str:
        """`follows`, `hardly` or `not`: by the share of repeats in the right order."""
        share = self.ordered / len(self.correlations)
        return "follows" if share >= ENOUGH else "hardly" if share >= ENOUGH / 3 else "not"


def following(series: Series, without: Series, losses: Sequence[float], floor: float) -> Following:
    """Compare scores with the loss, and their height above the floor with that without noise."""
    correlations = [float(spearmanr(scores, [-loss for loss in losses]).statistic) for scores in series.scores]
    ordered = sum(bool(np.all(np.diff(scores) > 0)) for scores in series.scores)
    return Following(correlations, ordered, (series.medians[-1] - floor) / (without.medians[-1] - floor))


def show(series: Sequence[Series], losses: Mapping[int, float], floor: Floor, eval_type: str) -> None:
    """Print the table and the conclusion."""
    rounds = "".join(f"{f'round {number}':>10}" for number in losses)
    print(f"\nMedian {TITLES[eval_type]}; of confidence: the mean")
    print(f"{'report':24}{rounds}   rank correlation     in order  kept above floor")
    print(f"{'(loss of the model)':24}" + "".join(f"{loss:10.3f}" for loss in losses.values()))
    verdicts: dict[str, list[str]] = {}
    for each in series:
        if each.refusal is not None:
            print(f"{each.name:24}   not collected")
            continue
        without = next(other for other in series if (other.content, other.epsilon) == (each.content, None))
        found = following(each, without, list(losses.values()), 0.0 if each.content == "confidence" else floor.mean)
        cells = "".join(f"{score:10.3f}" for score in each.medians)
        middle, low, high = (f(found.correlations) for f in (np.median, min, max))
        print(
            f"{each.name:24}{cells}   {middle:5.2f} [{low:5.2f}, {high:5.2f}] "
            f"{f'{found.ordered} of {len(found.correlations)}':>11} {found.kept:17.0%}"
        )
        if each.epsilon is not None:
            verdicts.setdefault(found.verdict, []).append(each.name)
    print(f"{'noise alone (floor)':24}{floor.mean:10.3f}   in [{floor.least:.3f}, {floor.most:.3f}]")
    print(f"By chance, one series in {factorial(len(losses))} is in order.\n")
    for verdict in ("follows", "hardly", "not"):
        if verdict in verdicts:
            print(f"{verdict:8} the training: {'; '.join(verdicts[verdict])}")
    least = min(
        (
            each.epsilon or 0.0
            for each in series
            if each.name in verdicts.get("follows", ()) and each.content == "output"
        ),
        default=None,
    )
    if least is not None:
        print(
            f"The least epsilon at which the {TITLES[eval_type]} follows is {least:g} for a report, and "
            f"{least * len(losses):g} for one training's {len(losses)} rounds"
            f"{': that protects nobody' * (least * len(losses) > VACUOUS)}."
        )


def plot(series: Sequence[Series], losses: Mapping[int, float], floor: Floor, eval_type: str, file: Path) -> None:
    """Plot scores over rounds with the floor, the loss beside them, and the mean confidence."""
    size = (11, 3.8)
    figure, panels = plt.subplots(1, 3, figsize=size, width_ratios=(2.2, 1, 1), layout="constrained")
    rounds = list(losses)
    outputs = [each for each in series if each.content == "output" and each.scores]
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, max(1, len(outputs) - 1)))
    colours = [to_hex(shade) for shade in shades]
    panels[0].axhspan(floor.least, floor.most, color="0.85", label="noise alone (floor)")
    for each, colour in zip(outputs, ["black", *colours[::-1]], strict=False):
        _line(panels[0], rounds, each, colour)
    panels[0].set(title="Score of the reports", ylabel=TITLES[eval_type], xlabel="rounds of training", xticks=rounds)
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    order = [1, *range(len(labels) - 1, 1, -1), 0]  # as the lines end, from the top
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside left center", fontsize="small")
    panels[1].plot(rounds, list(losses.values()), marker="o", color="black")
    panels[1].set(title="Loss on public digits", ylabel="cross-entropy", xlabel="rounds of training", xticks=rounds)
    panels[1].set_ylim(bottom=0)
    for each in (each for each in series if each.content == "confidence" and each.scores):
        _line(panels[2], rounds, each, "black" if each.epsilon is None else "tab:orange")
    panels[2].set(title="Mean of one number", ylabel="mean confidence", xlabel="rounds of training", xticks=rounds)
    panels[2].set_ylim(0, 1)
    panels[2].legend(fontsize="small")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _line(panel: Axes, rounds: Sequence[int], series: Series, colour: str) -> None:
    """Draw a series' median, and its range as a band."""
    style = "--" if series.epsilon is None else "-"
    noise = "no noise" if series.epsilon is None else f"epsilon {series.epsilon:g}"
    panel.plot(rounds, series.medians, style, marker="o", markersize=4, color=colour, label=noise)
    if len(series.scores) > 1:
        panel.fill_between(rounds, *np.percentile(series.scores, (0, 100), axis=0), color=colour, alpha=0.2, lw=0)
