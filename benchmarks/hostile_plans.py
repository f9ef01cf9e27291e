"""Hostile planning requests of few bytes, and the processor seconds and memory that each takes.

`python -m benchmarks.hostile_plans [requests] [seed]` prints the worst of random ones, and how long another
organisation's steps wait beside them. `awful_plans` makes long ones.
"""

import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import httpx2

from app.accounting.errors import AccountingError
from app.accounting.pricing_effort import bounded
from app.api.planning_jobs import run_planner_job
from app.ledger.errors import LedgerError
from benchmarks.servers import Server, ledger_of_two, steps_path

Json = dict[str, Any]

REQUESTS, SEED = 200, 47
CLIENTS, SECONDS = 20, 20.0

OPERATIONS: Final = {
    "computeEpsilon": "/v1/accounting/epsilon",
    "computeDelta": "/v1/accounting/delta",
    "computeEpsilonTrajectory": "/v1/accounting/trajectory",
    "findNoiseMultiplier": "/v1/accounting/noise-multiplier",
    "findMaxSteps": "/v1/accounting/steps",
    "findSamplingProbability": "/v1/accounting/sampling-probability",
}
ADD, REPLACE = "add_or_remove_one", "replace_one"


class Measured(NamedTuple):
    """What a request took.

    Args:
        seconds: of a processor.
        megabytes: by which the process grew.
        outcome: the code of the error, or "answered".
    """

    seconds: float
    megabytes: float
    outcome: str


def exponentials(count: int, first: float, step: float, repetitions: int) -> list[Json]:
    """Build counted events of the exponential mechanism with rising epsilons."""
    return [
        {"event": {"type": "exponential", "epsilon": first + step * place}, "count": repetitions}
        for place in range(count)
    ]


def hostile_plans(choice: random.Random, count: int) -> Iterator[tuple[str, Json]]:
    """Yield operations and bodies of at most a few thousand bytes, chosen by a random generator."""
    for _ in range(count):
        yield _request(choice)


def _request(choice: random.Random) -> tuple[str, Json]:
    operation = choice.choice(list(OPERATIONS))
    relation = choice.choice([ADD, ADD, ADD, REPLACE])
    delta = choice.choice([1e-30, 1e-30, 1e-12, 1e-5, 0.4])
    body: Json = {"neighboring_relation": relation, "delta": delta}
    kind, scale = choice.choice(list(LEAVES)), 10 ** choice.uniform(-9, 2.7)
    same = choice.randrange(2)  # mechanisms of one kind and about equal losses share a lattice

    def event(near: float) -> Json:
        if not same:
            return _wrapped(choice, choice.choice(list(LEAVES)), 10 ** choice.uniform(-9, 2.7), relation)
        return _wrapped(choice, kind, scale * near, relation)

    number = choice.choice([1, 1, 2, 5, 20, 60])
    counted = [{"event": event(1 + place / 300), "count": _count(choice)} for place in range(number)]
    if operation in {"computeEpsilon", "computeDelta", "computeEpsilonTrajectory"}:
        body["events"] = counted
        if operation == "computeDelta":
            body["epsilon"] = choice.choice([0.0, 10 ** choice.uniform(-3, 4)])
            del body["delta"]
        if operation == "computeEpsilonTrajectory":
            body["max_points"] = choice.choice([1, 30, 2000])
        return operation, body
    body |= {"epsilon": 10 ** choice.uniform(-3, 4), "event": counted[0]["event"], "other_events": counted[1:]}
    if operation != "findMaxSteps":
        body["count"] = counted[0]["count"]
    return operation, body


def _count(choice: random.Random) -> int:
    return choice.choice([1, int(10 ** choice.uniform(0, 9)), 10**9])


LEAVES: Final = (
    "exponential",
    "permute_and_flip",
    "discrete_laplace",
    "discrete_gaussian",
    "laplace",
    "epsilon_delta",
    "gaussian",
    "mixture_of_gaussians",
)


def _leaf(choice: random.Random, kind: str, scale: float) -> Json:
    """Build a mechanism whose loss is about so many nats."""
    noise = min(max(1 / scale, 2e-3), 1e6)
    match kind:
        case "exponential" | "permute_and_flip" | "epsilon_delta":
            found: Json = {"epsilon": min(scale, 499.0)}
        case "discrete_laplace":
            sensitivity = choice.choice([1, 3, 1000, 10**6])
            found = {"noise_parameter": scale / sensitivity, "sensitivity": sensitivity}
        case "discrete_gaussian":
            found = {"noise_multiplier": noise, "sensitivity": choice.choice([1, 4, 1000, 10**6])}
        case "mixture_of_gaussians":
            sizes = [0.0, *sorted(choice.random() for _ in range(choice.choice([1, 10, 60]))), 1.0]
            rare = 2.0 ** -choice.choice([2, 10, 30])
            shares = [(1 - rare) / (len(sizes) - 1)] * (len(sizes) - 1) + [rare]
            found = {"standard_deviation": noise, "sensitivities": sizes, "sampling_probs": shares}
        case _:
            found = {"noise_multiplier": noise}
    return {"type": kind} | found


def _wrapped(choice: random.Random, kind: str, scale: float, relation: str) -> Json:
    event = _leaf(choice, kind, scale)
    if relation == ADD and choice.randrange(3) == 0:
        q = 10 ** choice.uniform(-9, -0.01)
        event = {"type": "poisson_sampled", "sampling_probability": q, "event": event}
        if kind == "gaussian" and choice.randrange(3) == 0:
            size = choice.randint(10, 10**9)
            drawn = {"source_dataset_size": size, "truncated_batch_size": max(1, int(q * size))}
            event = event | {"type": "truncated_poisson_sampled"} | drawn
    how = choice.randrange(6)
    if how == 0:
        event = {"type": "self_composed", "count": choice.choice([2, 1000, 10**9]), "event": event}
    elif how == 1:
        event = {"type": "group_privacy", "group_size": choice.choice([2, 30]), "event": event}
    elif how == 2:  # noqa: PLR2004 - one of six
        event = {"type": "composed", "events": [event, _leaf(choice, kind, scale * choice.uniform(0.5, 2))]}
    elif how == 3 and kind == "gaussian":  # noqa: PLR2004 - one of six
        event = {"type": "decay", "mode": "exp", "decay_rate": 1e-6, "steps": 100_000, "event": event}
    return event


def measure(operation: str, body: Json, seconds: float = 60.0) -> Measured:
    """Answer a request in a fork of this process, with the bound of work, but hardly one of time and none of memory."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        own = resource.getrusage(resource.RUSAGE_SELF)
        try:
            with bounded():
                run_planner_job(operation, json.dumps(body).encode())
            outcome = "answered"
        except (AccountingError, LedgerError) as error:
            outcome = error.code
        except BaseException as error:  # noqa: BLE001 - it is shown
            outcome = repr(error)
        used = resource.getrusage(resource.RUSAGE_SELF)
        taken = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
        os.write(theirs, json.dumps([taken, (used.ru_maxrss - own.ru_maxrss) / 1000, outcome]).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return Measured(*json.loads(content)) if content else Measured(seconds, 0.0, f"status {status}")


KNOWN: Final[dict[str, tuple[str, Json]]] = {
    "twenty exponentials": (
        "findMaxSteps",
        {
            "event": {"type": "exponential", "epsilon": 21.2},
            "other_events": exponentials(19, 21.3, 0.06, 100_000),
            "epsilon": 0.0033,
            "delta": 1e-30,
        },
    ),
    "two exponentials": ("computeEpsilon", {"events": exponentials(2, 21.2, 0.1, 100_000), "delta": 1e-30}),
    "trajectory of tiny exponentials": (
        "computeEpsilonTrajectory",
        {"events": exponentials(2, 7e-9, 1e-10, 10**9), "delta": 1e-30, "max_points": 2000},
    ),
    "permute_and_flip": (
        "findMaxSteps",
        {"event": {"type": "permute_and_flip", "epsilon": 160.3}, "epsilon": 1.0, "delta": 1e-30},
    ),
    "discrete_laplace, self_composed": (
        "findMaxSteps",
        {
            "event": {
                "type": "self_composed",
                "count": 1000,
                "event": {"type": "discrete_laplace", "noise_parameter": 6.44, "sensitivity": 3},
            },
            "epsilon": 0.01,
            "delta": 1e-30,
        },
    ),
}
"""Requests that took 1 to 19 s, and up to 1 GB, before each part of a lattice was counted."""


def main() -> None:
    """Print the worst of the known and of random requests, and how long steps of another organisation wait."""
    requests, seed = [*map(int, sys.argv[1:]), *(REQUESTS, SEED)[len(sys.argv) - 1 :]]
    worst(requests, seed)
    with tempfile.TemporaryDirectory() as folder, ledger_of_two(f"sqlite:///{Path(folder) / 'l.db'}", workers=2) as two:
        waits(*two, seed)


def worst(requests: int, seed: int) -> None:
    """Print processor seconds and megabytes of the known requests, and the worst of random ones."""
    warm_up()
    for name, (operation, body) in KNOWN.items():
        print(f"{name:40} {_shown(measure(operation, body))}")
    found = [measure(*plan) for plan in hostile_plans(random.Random(seed), requests)]  # noqa: S311 - repeatable
    print(f"of {requests} random requests (seed {seed}): {dict(Counter(each.outcome for each in found))}")
    print(f"{'most seconds':40} {_shown(max(found))}")
    print(f"{'most megabytes':40} {_shown(max(found, key=lambda each: each.megabytes))}\n")


def warm_up() -> None:
    """Import what the formulas import late, so that forks need not."""
    for module in ("scipy.fft", "scipy.optimize", "scipy.special"):
        import_module(module)


def _shown(found: Measured) -> str:
    return f"{found.seconds:6.2f} s {found.megabytes:6.0f} MB  {found.outcome}"


def waits(ours: Server, theirs: Server, seed: int) -> None:
    """Print the latency of steps alone, and beside clients of another organisation with hostile plans."""
    path, steps, numbers = steps_path(ours), itertools.count(), itertools.count()

    def step(event: Json | None) -> float:
        own = {} if event is None else {"event": event}
        return ours.timed("POST", path, {"count": 1, "first_step": next(steps)} | own)

    def gaussian() -> Json:
        return {"type": "gaussian", "noise_multiplier": 50 + next(numbers) / 1e4}

    def laplace() -> Json:
        noise = {"type": "discrete_laplace", "noise_parameter": 1e-3 * (1 + next(numbers) / 1e5), "sensitivity": 1}
        return {"type": "poisson_sampled", "sampling_probability": 1e-3, "event": noise}

    kinds = {"a step": lambda: None, "with a new event": gaussian, "with a new expensive event": laplace}
    print(f"{'':50} {'steps':>6} {'median ms':>10} {'largest ms':>11}")
    for name, clients in (("alone", 0), (f"beside {CLIENTS} hostile clients", CLIENTS)):
        with attacked(theirs, clients, seed):
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                for kind, event in kinds.items():
                    times[kind].append(step(event()))
                    time.sleep(0.02)
        for kind, waited in times.items():
            print(f"{f'{kind}, {name}':50} {len(waited):6} {median(waited):10.1f} {max(waited):11.1f}")


@contextmanager
def attacked(server: Server, clients: int, seed: int) -> Iterator[None]:
    """Let clients send hostile plans without a pause, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_attack, args=(server.port, server.client.headers["Authorization"], clients, seed))
    process.start()
    try:
        time.sleep(3.0 if clients else 0.0)  # less than the server keeps a connection
        yield
    finally:
        process.terminate()  # its requests wait for minutes
        process.join()


def _attack(port: int, authorization: str, clients: int, seed: int) -> None:
    headers = {"Authorization": authorization}

    def send(client: int) -> None:
        plans = [*KNOWN.values(), *hostile_plans(random.Random(seed + client), REQUESTS)]  # noqa: S311 - repeatable
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120, trust_env=False) as own:
            for operation, body in itertools.cycle(plans):
                with suppress(httpx2.TransportError):
                    own.post(OPERATIONS[operation], json=body)

    with ThreadPoolExecutor(max(clients, 1)) as threads:
        list(threads.map(send, range(clients)))


if __name__ == "__main__":
    main()
