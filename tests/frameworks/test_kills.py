"""Trainings of each framework are killed and restarted, and so is the service: what was released is charged."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fork_server import ForkServer
from tests.frameworks import trainers
from tests.frameworks.flower import flower_environment
from tests.polling import PATIENCE_SECONDS
from tests.reliability.conftest import ROUNDS, Service, running, service
from tests.reliability.jobs import Job, Site

__all__ = ["running", "service"]

# Read when Keras is imported, by the process that forks its trainers.
os.environ["KERAS_BACKEND"] = "jax"


IMPORTS: dict[str, tuple[str, ...]] = {
    "numpy_optimizer": ("epsilon_ledger.mechanisms",),
    "opacus": ("tests.frameworks.conftest", "epsilon_ledger.opacus"),
    "transformers_trainer": ("tests.frameworks.language_models", "epsilon_ledger.transformers"),
    # JAX starts its threads when it is first used, not when it is imported.
    "jax_optax": ("optax", "epsilon_ledger.jax"),
    "keras_fit": ("jax_privacy.keras_api", "epsilon_ledger.keras"),
    "flower_server": ("epsilon_ledger.flower",),
    "nvflare_filter": ("epsilon_ledger.nvflare",),
}
"""Of the process that forks a trainer: what survives a fork."""
WAYS: dict[str, dict[str, Any]] = {"alone": {}, "grants": {"prefetch": 6}}
STEPS = 16
KILLS = 4 if ROUNDS > 1 else 2
"""Of a trainer or the service, in a round: 200 in the 50 rounds of `make soak`."""


def environment(trainer: str) -> dict[str, str]:
    return flower_environment() if trainer == "flower_server" else {"JAX_PLATFORMS": "cpu"}


@cache
def forks(trainer: str) -> ForkServer:
    return ForkServer("numpy", "epsilon_ledger", *IMPORTS[trainer], environment=environment(trainer))


@contextmanager
def training(service: Service, folder: Path, trainer: str, way: str) -> Iterator[Site]:
    asked = {
        "trainer": trainer,
        "url": service.server.url,
        "key": service.server.key("trainer"),
        "budget": service.open_budget(3.0),
        "steps": STEPS,
        "ahead": WAYS[way],
        "patience": PATIENCE_SECONDS,
        "folder": str(folder),
    }
    job = Job(folder, asked, module=trainers.__name__, forks=forks(trainer), environment=environment(trainer))
    try:
        yield Site(service, [job])
    finally:
        for process in job.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("trainer", IMPORTS)
def test_every_release_is_charged_when_trainer_or_service_is_killed(
    service: Service, tmp_path: Path, trainer: str, round_: int
) -> None:
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with training(service, tmp_path, trainer, chance.choice(list(WAYS))) as site:
        site.start()
        (job,) = site.jobs
        for _ in range(KILLS):
            job.await_steps(chance.randint(1, 5))
            if chance.random() < 0.25:
                site.service.restart()
                continue
            job.kill()
            site.is_charged(exactly=False)
            job.start()
        site.finish()
        assert job.released().total() >= STEPS
        site.is_charged(exactly=False)
