"""Table, picture and conclusion of the example of adaptive training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import Limit

mpl.use("Agg")
import matplotlib.pyplot as plt

Floats = NDArray[np.float64]

COLOURS = {
    "constant": "black",
    "decay, time": "#56b4e9",
    "decay, step": "#0072b2",
    "decay, exp": "#009e73",
    "clipping, linear": "#e69f00",
    "clipping, geometric": "#d55e00",
}
"""Of Okabe and Ito's palette, which colour-blind people can tell apart."""


@dataclass
class Training:
    """One training and its results.

    Args:
        noise: name in the table.
        optimizer: name in the table.
        noise_multiplier: of the first step.
        norm: clipping norm of the first step.
        learning_rate: of the optimizer.
        seed: of samples and noise.
        chosen: whether its clipping norm was chosen on public digits.
        accuracy: on test records, after each step.
        clipping_norm: at each step.
        epsilon: spent.
    """

    noise: str
    optimizer: str
    noise_multiplier: float
    norm: float
    learning_rate: float
    seed: int
    chosen: bool = False
    accuracy: list[float] = field(default_factory=list)
    clipping_norm: list[float] = field(default_factory=list)
    epsilon: float = 0.0


def final(trainings: Sequence[Training], noise: str, optimizer: str, norm: float | None = None) -> Floats:
    """Return the final accuracies, (n_seeds,), at a clipping norm; None: at the chosen one."""
    return np.array(
        [
            each.accuracy[-1]
            for each in trainings
            if (each.noise, each.optimizer) == (noise, optimizer)
            and (each.chosen if norm is None else each.norm == norm)
        ]
    )


def norms_of(trainings: Sequence[Training], noise: str, optimizer: str) -> list[float]:
    """Return the clipping norms that were trained with."""
    return list(dict.fromkeys(each.norm for each in trainings if (each.noise, each.optimizer) == (noise, optimizer)))


def spread(accuracies: Floats) -> str:
    """Format median and range."""
    return f"{np.median(accuracies):.1%} [{min(accuracies):.1%}, {max(accuracies):.1%}]"


def show(trainings: Sequence[Training], optimizers: Sequence[str]) -> None:
    """Print median and range of the accuracies: at the chosen clipping norm, and at the best and worst one."""
    noises = list(dict.fromkeys(training.noise for training in trainings))
    steps, seeds = len(trainings[0].accuracy), len({each.seed for each in trainings})
    print(f"\nAccuracy after {steps} steps: median [range] of {seeds} trainings, C chosen on public digits")
    print(f"{'noise':20} {'first z':>8}" + "".join(f"{optimizer:>29}" for optimizer in optimizers))
    for noise in noises:
        cells = []
        for optimizer in optimizers:
            norm = next(
                each.norm for each in trainings if each.chosen and each.noise == noise and each.optimizer == optimizer
            )
            cells.append(f"{f'C {norm:g}':>7}  {spread(final(trainings, noise, optimizer))}")
        first = next(each.noise_multiplier for each in trainings if each.noise == noise)
        print(f"{noise:20} {first:8.3f}" + "".join(f"{cell:>29}" for cell in cells))


def conclude(trainings: Sequence[Training], optimizers: Sequence[str]) -> None:
    """Print what the numbers show: against constant noise at the chosen norm, and over all norms."""
    noises = list(dict.fromkeys(training.noise for training in trainings))
    if "constant" not in noises:
        return
    verdicts: dict[str, list[str]] = {"better": [], "worse": [], "no difference shown": []}
    for optimizer in optimizers:
        base = final(trainings, "constant", optimizer)
        for noise in noises[1:] if noises[0] == "constant" else [each for each in noises if each != "constant"]:
            gains = final(trainings, noise, optimizer) - base
            verdict = "better" if min(gains) > 0 else "worse" if max(gains) < 0 else "no difference shown"
            verdicts[verdict].append(f"{noise} with {optimizer} ({np.median(gains):+.1%})")
    compared, seeds = sum(map(len, verdicts.values())), len(base)
    print(f"\nAgainst constant noise, seed by seed: better or worse means in all {seeds} trainings.")
    for verdict, names in verdicts.items():
        print(f"  {verdict:20} {'; '.join(names) or 'none'}")
    print(f"By chance alone, {compared * 2 * 0.5**seeds:.1f} of {compared} comparisons would be better or worse.")
    print("\nMedian accuracy over the clipping norms of the start:")
    for noise in noises:
        for optimizer in optimizers:
            norms = norms_of(trainings, noise, optimizer)
            if len(norms) > 1:
                medians = {norm: np.median(final(trainings, noise, optimizer, norm)) for norm in norms}
                least, most = min(medians, key=lambda c: medians[c]), max(medians, key=lambda c: medians[c])
                print(
                    f"  {noise:20} {optimizer:9} {medians[least]:.1%} at C {least:g} to "
                    f"{medians[most]:.1%} at C {most:g}; "
                    f"chosen on public digits {np.median(final(trainings, noise, optimizer)):.1%}"
                )


def plot(trainings: Sequence[Training], optimizers: Sequence[str], file: Path, limit: Limit) -> None:
    """Plot accuracy over steps, clipping norm over steps, and final accuracy over the first clipping norm."""
    size = (1 + 4 * len(optimizers), 9.5)
    figure, panels = plt.subplots(3, len(optimizers), figsize=size, squeeze=False, layout="constrained", sharey="row")
    noises = list(dict.fromkeys(training.noise for training in trainings))
    for column, optimizer in enumerate(optimizers):
        top, middle, bottom = panels[:, column]
        for noise in noises:
            colour = COLOURS[noise]
            chosen = [each for each in trainings if each.chosen and (each.noise, each.optimizer) == (noise, optimizer)]
            for panel, values in ((top, [t.accuracy for t in chosen]), (middle, [t.clipping_norm for t in chosen])):
                steps = range(1, len(values[0]) + 1)
                panel.plot(steps, np.median(values, axis=0), color=colour, label=noise, lw=1.2)
                panel.fill_between(
                    steps, np.min(values, axis=0), np.max(values, axis=0), color=colour, alpha=0.15, lw=0
                )
            norms = norms_of(trainings, noise, optimizer)
            found = [final(trainings, noise, optimizer, norm) for norm in norms]
            medians = np.array([np.median(each) for each in found])
            bars = np.abs(np.array([[min(each), max(each)] for each in found]).T - medians)
            # Beside each other, so that no bar hides another.
            shifted = np.array(norms) * 2 ** (0.07 * (list(COLOURS).index(noise) - 2.5))
            bottom.errorbar(shifted, medians, bars, color=colour, marker="o", ms=4, lw=1, capsize=2)
        top.set(title=optimizer, xlabel="step", ylim=(0.5, 0.95))
        middle.set(xlabel="step", yscale="log")
        middle.set_yticks([0.1, 0.3, 1.0, 3.0], ["0.1", "0.3", "1", "3"], minor=False)
        middle.set_yticks([], minor=True)
        ticks = sorted({each.norm for each in trainings})
        bottom.set(xlabel="clipping norm C of the first step", xscale="log", ylim=(0.75, 0.95))
        bottom.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        bottom.set_xticks([], minor=True)
    for row, name in enumerate(("accuracy, at the chosen C", "clipping norm C", "final accuracy")):
        panels[row, 0].set_ylabel(name)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(noises))
    seeds = len({each.seed for each in trainings})
    figure.suptitle(
        f"Every training spends epsilon {limit.epsilon:g} at delta {limit.delta:g}. "
        f"Lines: medians of {seeds} trainings; bands and bars: their ranges"
    )
    figure.savefig(file, dpi=80)
    plt.close(figure)
