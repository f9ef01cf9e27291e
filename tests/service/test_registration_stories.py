"""Random registrations, charges, ends, reservations and limits: verification follows all of them."""

from random import Random
from typing import Any

import pytest

from app.service.verification.verify import verify
from tests.api.trainer import approve, gaussian
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS

EVENTS: list[dict[str, Any] | None] = [
    {"type": "laplace", "noise_multiplier": 10.0},
    {
        "type": "poisson_sampled",
        "sampling_probability": 0.001,
        "event": {"type": "gaussian", "noise_multiplier": 0.7},
    },
    gaussian(20.0),
    {"type": "zcdp", "rho": 0.001, "delta": 1e-9},
    None,
]
BUDGETS = ["a/x", "a/y", "a/parts/north", "a/parts/south", "b/z"]
STEPS = 25


class Story:
    """An organisation in which something happens at random."""

    def __init__(self, ledger: Ledger, random: Random) -> None:
        self.ledger, self.random = ledger, random
        self.runs: list[str] = []
        limit = {"epsilon": 3.0, "delta": 1e-5}
        made = [ledger.population("a", limit=limit), ledger.population("b", limit=limit)]
        made += [ledger.budget(name, "a", limit=limit) for name in ("x", "y")]
        made.append(ledger.budget("z", "b", limit=limit, planned=[{"event": gaussian(20.0)}]))
        told = {"max_partitions_per_unit": 1, "attestation": "One site treats each patient."}
        terms: dict[str, Any] = {"composition": "parallel", **told}
        made.append(ledger.budget("parts", "a", limit=limit, **terms))
        made += [ledger.budget(name, "a/parts", limit=limit) for name in ("north", "south")]
        self.accounts = [str(each["id"]) for each in made]

    def event(self) -> dict[str, Any]:
        return self.random.choice([each for each in EVENTS if each is not None])

    def register(self) -> None:
        body: dict[str, Any] = {"name": "model", "event": self.random.choice(EVENTS)}
        budgets = self.random.sample(BUDGETS, self.random.choice([1, 1, 2]))
        body |= {"budget": budgets[0]} if len(budgets) == 1 else {"budgets": budgets}
        body["expected_steps"] = self.random.choice([None, 10, 1_000, 40_000])
        if self.random.random() < 0.2:
            body["limit"] = {"epsilon": 1.0, "delta": 1e-5}
        if self.random.random() < 0.2:
            body["planned"] = [{"event": self.event(), "count": 3}, {"event": self.event(), "count": 5}]
        if self.random.random() < 0.2:
            body |= {"reserve": [{"event": self.event(), "count": 5}], "lease_seconds": 600}
        reply = self.ledger.post("/v1/runs", body)
        assert reply.status_code in {201, 403, 422}, reply.text
        if reply.status_code == 201:
            self.runs.append(str(reply.json()["id"]))

    def charge(self) -> None:
        if self.runs:
            body: dict[str, Any] = {"count": self.random.choice([1, 1, 5]), "event": self.event()}
            if self.random.random() < 0.5:
                del body["event"]
            if self.random.random() < 0.1:
                body["mode"] = "report"
            reply = self.ledger.post(f"/v1/runs/{self.random.choice(self.runs)}/steps", body, "trainer")
            assert reply.status_code in {200, 403, 409, 422}, reply.text

    def end(self) -> None:
        if self.runs:
            run = self.random.choice(self.runs)
            reply = self.ledger.post(f"/v1/runs/{run}/abort", {}, "trainer")
            assert reply.status_code in {200, 409}, reply.text

    def give_back(self) -> None:
        for run in self.runs:
            reservation = self.ledger.get(f"/v1/runs/{run}").json()["reservation"]
            if reservation is not None:
                reply = self.ledger.post(f"/v1/reservations/{reservation}/void", None, "trainer")
                assert reply.status_code in {200, 409}, reply.text

    def change_limit(self) -> None:
        epsilon, delta = self.random.choice([2.0, 2.5, 4.0]), self.random.choice([1e-5, 2e-5])
        reply = self.ledger.set_limit(self.random.choice(self.accounts), epsilon, delta=delta)
        assert reply.status_code in {200, 201, 202, 422}, reply.text
        if reply.status_code in {201, 202}:
            approve(self.ledger, reply)


@pytest.mark.parametrize("seed", range(2 * ROUNDS))
def test_verification_follows_registrations(ledger: Ledger, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a story, no secret
    story = Story(ledger, random)
    for step in range(STEPS):
        act = random.choices(
            [story.register, story.charge, story.end, story.give_back, story.change_limit], [8, 3, 2, 1, 2]
        )[0]
        act()
        if step % 5 == 4:
            assert verify(ledger.database).problems == ()
