"""The client against the real service that holds it up."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from epsilon_ledger import LedgerClient, Run, gaussian
from tests.conftest import open_ledger
from tests.sdk.fake_ledger import URL
from tests.sdk.simulation import Wire

RANKS, STEPS = 4, 3


def runs_of(wire: Wire, client: LedgerClient, count: int) -> list[Run]:
    wire.ledger.population(limit={"epsilon": 100.0, "delta": 1e-5})
    wire.ledger.budget(limit={"epsilon": 100.0, "delta": 1e-5})
    return [client.create_run(f"rank-{rank}", budget="mimic/icu-team", event=gaussian(500.0)) for rank in range(count)]


def test_ranks_that_share_key_are_slowed_down_and_none_fails(tmp_path: Path) -> None:
    """Far over the limit, each is held up many times in a row."""
    with open_ledger(tmp_path, rate_limit_per_second=10, rate_limit_burst=4) as ledger:
        wire = Wire(ledger)
        with LedgerClient(URL, ledger.keys["hospital", "trainer"], transport=wire, max_attempts=2) as client:
            runs, began = runs_of(wire, client, RANKS), time.monotonic()
            with ThreadPoolExecutor(RANKS) as ranks:
                ends = list(ranks.map(lambda run: [run.authorize().next_step for _ in range(STEPS)][-1], runs))
            assert ends == [STEPS] * RANKS
            assert time.monotonic() - began > (RANKS * STEPS - 4) / 10
            assert {client.get_run(run.id).state.next_step for run in runs} == {STEPS}
