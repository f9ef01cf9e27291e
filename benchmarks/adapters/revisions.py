"""Adapters of several revisions: `python -m benchmarks.adapters.revisions --before FOLDER ... [NAME ...]`.

The same trainings run with the adapter of this tree, with that of FOLDER/sdk/src, a work tree of another revision, and
bare: each in a process of its own, in blocks of a few steps in turn, in an order by chance, against one ledger of this
tree. Printed are the steps, what the adapters add, the ratio of steps with this tree's adapter to those with the
other's, and a range that has it in nine of ten resamples of the blocks: of the time that passed, and of the
processor's; of the median, and of the tenth that was least disturbed by other processes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import quantiles

from benchmarks.servers import ledger

NAMES = ("opacus_cnn", "opacus_ghost_cnn", "jax_net", "keras_net", "opacus", "opacus_ghost", "jax_optax", "keras_fit")
"""Trainings as users have them, and then such whose steps are hardly more than the adapter."""
HERE = Path(__file__).parents[2]
WARM_UP, BLOCK, SETTLING = 100, 12, 2
"""Steps before the first block, of a block, and of these the first ones, which fill the processor's caches."""
RESAMPLES = 300
RANKS = {10: "median", 2: "tenth"}
"""Steps that are compared, by the twentieths of all that are shorter."""

Block = list[tuple[float, float]]
"""Times of each step: that passed, and the processor's."""
Take = Callable[[int], Block]
"""Takes as many steps."""


@contextmanager
def side(name: str, tree: Path, access: tuple[str, ...]) -> Iterator[Take]:
    """Start a training with the adapter of a tree; without access to a ledger it is bare."""
    environment = {
        "PYTHONPATH": f"{tree / 'sdk' / 'src'}{os.pathsep}{HERE}",
        "KERAS_BACKEND": "jax",
        "PYTHONWARNINGS": "ignore",
    }
    one_thread = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.adapters.side", name, *access],
        cwd=HERE,
        env=os.environ | environment | one_thread,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def take(steps: int) -> Block:
            print(steps, file=asked, flush=True)
            answer = next(line for line in answers if line.startswith("["))
            return [tuple(each) for each in json.loads(answer)]

        try:
            yield take
        finally:
            process.terminate()


def compare(name: str, trees: dict[str, Path], access: tuple[str, str], seconds: float) -> dict[str, list[Block]]:
    """Run a training bare and with the adapter of each tree, in turn, and return the blocks."""
    with ExitStack() as stack:
        takes = {"bare": stack.enter_context(side(name, HERE, ()))}
        takes |= {kind: stack.enter_context(side(name, tree, access)) for kind, tree in trees.items()}
        for take in takes.values():
            take(WARM_UP)
        blocks: dict[str, list[Block]] = {kind: [] for kind in takes}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for kind in random.sample(sorted(takes), len(takes)):
                blocks[kind].append(takes[kind](BLOCK)[SETTLING:])
        return blocks


def step_of(blocks: list[Block], which: int, rank: int) -> float:
    """Return the step that so many twentieths of all are shorter than."""
    return quantiles((step[which] for block in blocks for step in block), n=20)[rank - 1]


def resampled(now: list[Block], before: list[Block], which: int, rank: int) -> list[float]:
    """Return the ratios of resamples of the rounds, in order."""
    rounds = list(zip(now, before, strict=True))
    ratios = []
    for _ in range(RESAMPLES):
        ours, theirs = zip(*random.choices(rounds, k=len(rounds)), strict=True)  # noqa: S311 - no secret
        ratios.append(step_of(list(ours), which, rank) / step_of(list(theirs), which, rank))
    return sorted(ratios)


def show(name: str, blocks: dict[str, list[Block]]) -> None:
    """Print the lines of a training."""
    load = os.getloadavg()[0]
    for which, rank in product((0, 1), (10, 2)):
        steps = {kind: step_of(found, which, rank) for kind, found in blocks.items()}
        bare, now = steps.pop("bare"), steps.pop("now")
        what = f"{('time', 'processor')[which]}, {RANKS[rank]}"
        for kind, before in steps.items():
            ratios = resampled(blocks["now"], blocks[kind], which, rank)
            least, most = ratios[RESAMPLES // 20], ratios[-RESAMPLES // 20]
            print(
                f"{name:17} {what:17} {kind:16} {bare:8.0f} {before:8.0f} {now:8.0f} {before - bare:8.0f} "
                f"{now - bare:8.0f} {now / before:8.4f} {least:7.4f} {most:7.4f} {load:5.1f}",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", action="append", required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each comparison")
    parser.add_argument("names", nargs="*", default=NAMES)
    given = parser.parse_args()
    trees = {Path(folder).name: Path(folder).resolve() for folder in given.before} | {"now": HERE}
    columns = "".join(f" {column:>8}" for column in ("bare", "before", "now", "+before", "+now", "ratio"))
    print(f"{'microseconds':35} {'before':16}{columns} {'least':>7} {'most':>7} {'load':>5}")
    with (
        tempfile.TemporaryDirectory() as data,
        ledger(f"sqlite:///{Path(data) / 'ledger.db'}") as service,
    ):
        key = service.client.headers["Authorization"].removeprefix("Bearer ")
        for name in given.names:
            show(name, compare(name, trees, (f"http://127.0.0.1:{service.port}", key), given.seconds))


if __name__ == "__main__":
    main()
