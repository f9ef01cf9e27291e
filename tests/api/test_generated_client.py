"""A Python client that openapi-python-client makes from the API's description works, and reads well."""

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run
from tests.servers import LiveServer

pytestmark = pytest.mark.soak  # the document is compared byte for byte, and a generation takes 20 seconds
ROOT = Path(__file__).parents[2]
GENERATOR = Path(sys.prefix) / "generator"
"""Where `make` installs the generator, apart from the packages of the service."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the generated package, and what the generator said."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n")
    assert GENERATOR.is_dir(), "install the generator: make .venv/generator"
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta=none", f"--config={config}"]
    command += [f"--path={ROOT / 'openapi' / 'openapi.json'}", f"--output-path={folder / 'ledger_api'}"]
    done = run(command, env=os.environ | {"PYTHONPATH": str(GENERATOR)})
    sys.path.insert(0, str(folder))
    yield folder / "ledger_api", done.stdout + done.stderr
    sys.path.remove(str(folder))


def test_generator_understands_everything_but_pictures(generated: tuple[Path, str]) -> None:
    _, said = generated
    assert set(re.findall(r"WARNING parsing GET (\S+)", said)) == {
        f"/v1/{kind}/history.svg" for kind in ("accounts/{account_id}", "runs/{run_id}")
    }
    assert "ERROR" not in said


def test_enums_have_one_name_each(generated: tuple[Path, str]) -> None:
    """A type without a name is named after a member of a schema: `CreateRunFilter`, `ComputeDeltaBatches`."""
    package, _ = generated
    values: dict[str, list[str]] = {}
    for module in (package / "models").glob("*.py"):
        text = module.read_text()
        if "(StrEnum)" in text:
            values.setdefault(" ".join(re.findall(r'= "(.*)"', text)), []).append(module.stem)
    assert len(values) > 20
    assert [names for names in values.values() if len(names) > 1] == []


def test_generated_client_tells_a_trainers_story(generated: tuple[Path, str], tmp_path: Path) -> None:
    """Train until the budget is exhausted, and read what was decided."""
    assert generated
    client = import_module("ledger_api").AuthenticatedClient
    with (
        LiveServer(tmp_path) as server,
        client(base_url=server.url, token=server.key("admin")) as admin,
        client(base_url=server.url, token=server.key("trainer")) as trainer,
    ):
        _tell(admin, trainer)


def _call(operation: str, *ids: str, **more: Any) -> Any:  # noqa: ANN401 - of a package that is made by the test
    return import_module(f"ledger_api.api.{operation}").sync(*ids, **more)


def _tell(admin: Any, trainer: Any) -> None:  # noqa: ANN401 - of a package that is made by the test
    m: Any = import_module("ledger_api.models")
    noise = m.GaussianEvent(type_="gaussian", noise_multiplier=1.1)
    event = m.PoissonSampledEvent(type_="poisson_sampled", sampling_probability=0.1, event=noise)
    terms = {"privacy_unit": "patient", "neighboring_relation": m.NeighboringRelation.ADD_OR_REMOVE_ONE}
    body = m.CreatePopulation(name="mimic", limit=m.LimitInput(epsilon=8.0, delta=1e-5), **terms)
    population = _call("populations.create_population", client=admin, body=body)
    limit, planned = m.LimitInput(epsilon=2.0, delta=1e-5), [m.PlannedEventInput(event=event)]
    body = m.CreateBudget(name="team", parent=population.id, planned=planned, limit=limit)
    plan = _call("budgets.create_budget", client=admin, body=body).plan
    assert (plan.state, plan.steps_remaining) == (m.PlanState.ACTIVE, plan.steps)
    body = m.CreateRun(name="model", budget="mimic/team", event=event)
    run = _call("runs.create_run", client=admin, body=body, idempotency_key="model")
    taken, steps = 0, m.AuthorizeSteps(count=10, mode=m.StepMode.AUTHORIZE, on_exceed=m.OnExceed.TRUNCATE)
    while isinstance(answer := _call("runs.authorize_steps", run.id, client=trainer, body=steps), m.StepAuthorization):
        assert (answer.first_step, answer.requested_count) == (taken, 10)
        taken += answer.count
    assert (answer.status, answer.code, answer["max_steps_that_fit"]) == (403, "budget_exceeded", 0)
    refused, *admitted = _call("decisions.list_decisions", client=trainer, run=run.id, limit=200).items
    assert (refused.decision, refused.request_id) == (m.DecisionOutcome.REFUSED, answer.request_id)
    assert sum(each.count for each in admitted) == taken
