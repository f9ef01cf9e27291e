"""Flower, which is installed beside the other frameworks: it needs an older typer than the service."""

import os
import sys
from pathlib import Path

from tests.fork_server import ROOT


def flower_environment() -> dict[str, str]:
    """Return what a process needs to import Flower, and to tell nobody that it ran."""
    there = [str(Path(sys.prefix) / "flower"), str(ROOT), str(ROOT / "sdk" / "src")]
    return {
        "PYTHONPATH": os.pathsep.join(there),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
