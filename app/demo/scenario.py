"""The sequence of the demo."""

import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2
import numpy as np
from rich.console import Console

from app.demo import DemoError
from app.demo.report import Facts, Screen, gather, point_further, show
from app.demo.server_process import DemoFolder, run_command, running_service
from app.demo.training import (
    DELTA,
    EPSILON,
    MODEL,
    Patients,
    TrainingResult,
    load_patients,
    step_event,
    train_until_refused,
)
from epsilon_ledger import LedgerClient, LedgerError, Limit, Run, RunHistory, RunState

_ORGANISATION = "demo-hospital"
_POPULATION = "breast-cancer-patients"
_BUDGET = "tumour-model"


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys of the privacy office, the training job and a viewer."""

    admin: str
    trainer: str
    viewer: str


def run_demo(*, keep: bool = True, as_json: bool = False, seed: int | None = None) -> int:
    """Train until the ledger refuses a step, verify the ledger, return the exit status.

    With `as_json` the story goes to standard error, the facts as JSON to standard output. A `seed` is for tests only,
    because predictable noise protects no one.
    """
    screen = Screen(Console(stderr=as_json))
    folder = Path(tempfile.mkdtemp(prefix="epsilon-ledger-demo-"))
    try:
        facts = play(screen, folder, seed=seed, keep=keep)
    except DemoError as error:
        screen.say(f"The demo failed: {error}")
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder)
    if as_json:
        sys.stdout.write(json.dumps(asdict(facts)) + "\n")
    return 0


def play(screen: Screen, folder: Path, *, seed: int | None, keep: bool) -> Facts:
    """Play the demo from beginning to end, in an existing, empty folder.

    The `seed` of sampling and noise is for tests only; by default they come from the operating system's entropy.
    """
    began = time.monotonic()
    demo = DemoFolder(folder)
    patients = load_patients()
    screen.say("Epsilon Ledger: a training that stops at its privacy budget")
    screen.say()
    try:
        with running_service(demo) as url:
            screen.say(f"The ledger runs at {url}, on {demo.database_url}")
            keys = _make_keys(demo)
            screen.say(f"Watch it there in a browser if you like: sign in with the key {keys.viewer}")
            without_plan = _open_accounts(screen, url, keys.admin, patients)
            run, trained = _train(screen, url, keys.trainer, patients, seed)
            state, history = _look(url, keys.viewer, run.id)
    except LedgerError as error:
        raise DemoError(f"{type(error).__name__}: {error}\n{demo.log_tail}") from error
    # The service has stopped: the verification reads the file alone.
    verification = run_command(demo, "verify")
    facts = gather(
        state=state,
        history=history,
        trained=trained,
        without_plan=without_plan,
        patients=patients,
        verification=verification,
        database_url=demo.database_url,
        seconds=time.monotonic() - began,
    )
    show(screen, facts, trained.refusal)
    if keep:
        point_further(screen, demo, run.id, keys.viewer)
    return facts


def _make_keys(demo: DemoFolder) -> Keys:
    run_command(demo, "org", "create", _ORGANISATION)
    admin, trainer, viewer = (
        str(
            run_command(demo, "keys", "create", "--org", _ORGANISATION, "--role", role, "--name", f"demo {role}")["key"]
        )
        for role in ("admin", "trainer", "viewer")
    )
    return Keys(admin, trainer, viewer)


def _client(url: str, key: str) -> LedgerClient:
    # An explicit transport ignores proxies of the environment.
    return LedgerClient(url, key, transport=httpx2.HTTPTransport())


def _open_accounts(screen: Screen, url: str, key: str, patients: Patients) -> int:
    """Create the accounts; return the number of steps that the budget would admit without its plan."""
    with _client(url, key) as client:
        population = client.create_population(
            _POPULATION,
            privacy_unit="patient record",
            neighboring_relation="add_or_remove_one",
            size=patients.count,
            limit=Limit(epsilon=2 * EPSILON, delta=DELTA),
        )
        limit, event = Limit(epsilon=EPSILON, delta=DELTA), step_event()
        budget = client.create_budget(_BUDGET, parent=_POPULATION, limit=limit, planned=[event])
        steps = client.find_max_steps(event, epsilon=EPSILON, delta=DELTA).steps
    screen.say(
        f"The privacy office opened {population.path} ({patients.count} patient records, epsilon "
        f"{population.limit.epsilon:g}) and {budget.path} (epsilon {budget.limit.epsilon:g}), both at delta "
        f"{DELTA:g}"
    )
    screen.say(
        f"The budget's plan is this training: it allows {steps.with_plan} steps, "
        f"{steps.with_plan - steps.without_plan} more than the {steps.without_plan} of a budget without a plan"
    )
    return steps.without_plan


def _train(screen: Screen, url: str, key: str, patients: Patients, seed: int | None) -> tuple[Run, TrainingResult]:
    rng = np.random.default_rng(seed)
    with _client(url, key) as client:
        run = client.create_run("logistic-regression", budget=f"{_POPULATION}/{_BUDGET}", event=step_event())
        expected = run.state.steps_remaining or 0
        screen.say(
            f"The trainer registered {run.id}: DP-SGD, sampling probability "
            f"{MODEL.sampling_probability:g}, noise multiplier {MODEL.noise_multiplier:g}; {expected} steps "
            f"fit into the budget"
        )
        screen.say("Before each step it asks the ledger, and only then releases:")
        screen.say()
        with run, screen.training(expected) as watch:
            trained = train_until_refused(run, patients, rng, watch)
    return run, trained


def _look(url: str, key: str, run_id: str) -> tuple[RunState, RunHistory]:
    with _client(url, key) as client:
        return client.get_run(run_id).state, client.get_run_history(run_id)
