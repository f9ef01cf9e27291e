"""Fuzz a live service: `make fuzz SEED=7 REQUESTS=20000 DATABASE=sqlite`, or of both kinds without the last."""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.databases import new_database
from tests.fuzz.session import Session, Tally
from tests.ledgers import signing_key
from tests.servers import LiveServer

KINDS = ("sqlite", "postgresql")
ENVIRONMENT = {
    "EPSILON_LEDGER_SIGNING_KEY_FILE": str(signing_key()[0]),
    "EPSILON_LEDGER_RATE_LIMIT_PER_SECOND": "0",
    "EPSILON_LEDGER_RATE_LIMIT_ANONYMOUS_PER_SECOND": "0",
    "EPSILON_LEDGER_WEBHOOKS_ALLOW_PRIVATE": "true",
}
"""A fuzz asks faster than one may, and is told so by no limit; its receivers lead to closed ports of this machine."""


def main() -> int:
    """Fuzz, and print what became of it; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--check-every", type=int, default=4000)
    parser.add_argument("--database", choices=KINDS, action="append")
    asked = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    faults = 0
    for kind in asked.database or KINDS:
        print(f"{kind}, seed {asked.seed}: {asked.requests} requests", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = fuzz(kind, Path(folder), asked.seed, asked.requests, asked.check_every)
        print(f"{tally}\n{time.monotonic() - began:.0f} s\n", flush=True)
        faults += len(tally.faults)
    return 1 if faults else 0


def fuzz(kind: str, folder: Path, seed: int, requests: int, check_every: int) -> Tally:
    """Fuzz a server of its own on a new database.

    Args:
        kind: of database.
        folder: an empty one.
        seed: of all that is asked.
        requests: how many.
        check_every: how many between two verifications.

    Returns:
        What became of it.
    """
    with new_database(kind, folder) as url:
        server = LiveServer(folder, url)
        server.key("admin", "hospital")
        server.key("admin", "university")
        server.start()
        try:
            return Session(server, seed, lambda line: print(line, flush=True)).run(requests, check_every)
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
