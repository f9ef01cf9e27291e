"""Trainings of each framework are killed and restarted, and so is the service: what was released is charged."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fork_server import ForkServer
from tests.frameworks.flower import flower_environment
from tests.reliability.clients import PATIENCE_SECONDS
from tests.reliability.conftest import ROUNDS, Service, running, service
from tests.reliability.jobs import Job, Site

__all__ = ["running", "service"]

# Read when Keras is imported, by the process that forks its trainers.
os.environ["KERAS_BACKEND"] = "jax"


@dataclass(frozen=True)
class Adapter:
    """A framework's trainer.

    Args:
        module: in `tests.frameworks.trainers`.
        imports: what the process that forks trainers imports before, of what survives a fork.
        environment: of the trainer, and of these imports.
        relation: of the population.
        optional: module without which this trainer is skipped.
        slow: whether `make soak` alone leaves it alone; otherwise it is killed.
    """

    module: str
    imports: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    relation: str = "add_or_remove_one"
    optional: str = ""
    slow: bool = False


ADAPTERS = [
    Adapter("numpy_optimizer", ("numpy", "epsilon_ledger.mechanisms")),
    Adapter("mindarmour_optimizer", ("numpy", "epsilon_ledger.mindarmour")),
    Adapter("mindspore_callback", ("numpy",), optional="mindspore"),
    Adapter("opacus", ("torch", "opacus", "epsilon_ledger.opacus"), slow=True),
    Adapter("training_charge"),
    Adapter("fixed_batches", ("torch",), relation="replace_one"),
    Adapter("lightning", ("torch", "opacus", "lightning.pytorch", "epsilon_ledger.lightning"), slow=True),
    Adapter("transformers_trainer", ("transformers", "peft", "epsilon_ledger.transformers"), slow=True),
    # JAX starts its threads when it is first used, not when it is imported.
    Adapter("jax_optax", ("optax", "epsilon_ledger.jax"), {"JAX_PLATFORMS": "cpu"}, slow=True),
    Adapter("keras_fit", ("jax_privacy.keras_api", "epsilon_ledger.keras"), {"JAX_PLATFORMS": "cpu"}, slow=True),
    Adapter("flower_server", ("epsilon_ledger.flower",), flower_environment()),
    Adapter("nvflare_filter", ("epsilon_ledger.nvflare",)),
]
WAYS: dict[str, dict[str, Any]] = {"alone": {}, "grants": {"authorize_every": 6}}
STEPS = 16
KILLS = 4 if ROUNDS > 1 else 2
"""Of a trainer or the service, in a round: 200 in the 50 rounds of `make soak`."""


@cache
def forks(module: str) -> ForkServer:
    (adapter,) = (each for each in ADAPTERS if each.module == module)
    return ForkServer("epsilon_ledger", *adapter.imports, environment=adapter.environment)


@contextmanager
def training(service: Service, folder: Path, adapter: Adapter, way: str) -> Iterator[Site]:
    asked = {
        "url": service.server.url,
        "key": service.server.key("trainer"),
        "budget": service.open_budget(3.0, adapter.relation),
        "steps": STEPS,
        "ahead": WAYS[way],
        "patience": PATIENCE_SECONDS,
        "folder": str(folder),
    }
    job = Job(
        folder,
        asked,
        module=f"tests.frameworks.trainers.{adapter.module}",
        forks=forks(adapter.module),
        environment=adapter.environment,
    )
    try:
        yield Site(service, [job])
    finally:
        for process in job.processes:
            process.kill()
            process.wait()


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: adapter.module)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    found: Adapter = request.param
    if found.optional and find_spec(found.optional) is None:
        pytest.skip(f"{found.optional} is not installed")
    return found


@pytest.mark.parametrize(
    ("adapter", "way"),
    [
        pytest.param(adapter, way, marks=pytest.mark.soak if adapter.slow or way == "alone" else ())
        for adapter in ADAPTERS
        for way in WAYS
    ],
    ids=lambda value: value if isinstance(value, str) else value.module,
    indirect=["adapter"],
)
def test_exactly_releases_are_charged_without_kill(
    service: Service, tmp_path: Path, adapter: Adapter, way: str
) -> None:
    with training(service, tmp_path, adapter, way) as site:
        site.start()
        site.finish()
        assert site.jobs[0].released().total() == STEPS
        site.is_charged(exactly=True)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_every_release_is_charged_when_trainer_or_service_is_killed(
    service: Service, tmp_path: Path, adapter: Adapter, round_: int
) -> None:
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with training(service, tmp_path, adapter, chance.choice(list(WAYS))) as site:
        site.start()
        (job,) = site.jobs
        for _ in range(KILLS):
            job.await_steps(chance.randint(1, 5))
            if chance.random() < 0.25:
                site.restart_server()
                continue
            job.kill()
            site.is_charged(exactly=False)
            job.start()
        site.finish()
        assert job.released().total() >= STEPS
        site.is_charged(exactly=False)
