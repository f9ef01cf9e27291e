"""Time of the service's start: `python -m benchmarks.start [--starts N]`.

From the command to the first answer of `/readyz`, on a SQLite file that does not exist yet and on one that does, in
alternation with the bare endpoint: FastAPI under uvicorn with the models of a step, and nothing else. Processor time
is what other work on the machine prolongs least.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

from benchmarks.servers import Server, bare, compile_sources, serving


def timed(server: AbstractContextManager[Server]) -> tuple[float, float]:
    """Start a server, and stop it; return seconds until it answered, and the processor seconds of these."""
    start = time.perf_counter()
    with server as running:
        return time.perf_counter() - start, running.processor_seconds()


def service(file: Path) -> AbstractContextManager[Server]:
    """Run the service on a SQLite file for the block."""
    environment = {"EPSILON_LEDGER_DATABASE_URL": f"sqlite:///{file}"}
    return serving([sys.executable, "-m", "app", "serve"], environment, "/readyz")


def main(starts: int = 7) -> None:
    """Print the table."""
    compile_sources()
    times: dict[str, list[tuple[float, float]]] = {"bare endpoint": [], "first start": [], "later start": []}
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ledger.db"
            times["bare endpoint"].append(timed(bare()))
            times["first start"].append(timed(service(file)))
            times["later start"].append(timed(service(file)))
    print(f"{'':15} {'until ready: least':>20} {'median':>8} {'largest':>8} {'processor, median':>19} {'ratio':>6}")
    floor = median(seconds for seconds, _ in times["bare endpoint"])
    for name, found in times.items():
        waits = [seconds for seconds, _ in found]
        processor = median(seconds for _, seconds in found)
        print(
            f"{name:15} {min(waits):18.2f} s {median(waits):6.2f} s {max(waits):6.2f} s {processor:17.2f} s"
            f" {median(waits) / floor:6.2f}"
        )
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=7)
    main(parser.parse_args().starts)
