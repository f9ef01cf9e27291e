"""Random trainings in random organisations, and a program that follows the advice of refusals."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx2

from tests.conftest import Ledger

DELTA = 1e-5
ATTESTED = {"composition": "parallel", "attestation": "each person is in one register"}


def sampled(noise: float, rate: float) -> dict[str, Any]:
    """A step of DP-SGD; without sampling at a rate of 1."""
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    if rate == 1:
        return gaussian
    return {"type": "poisson_sampled", "sampling_probability": rate, "event": gaussian}


@dataclass
class Training:
    """A program that takes the steps of a run, one by one, in batches or by grants, and obeys what refusals offer.

    Args:
        followed: kinds of advice that it has followed, with the reasons why others were not offered.
    """

    ledger: Ledger
    random: Random
    run: str
    steps: int
    noise: float
    rate: float
    tells_steps: bool
    grants: bool
    raises_limits: bool
    taken: int = 0
    followed: list[str] = field(default_factory=list)

    def finish(self) -> str:
        """Train to the end, or as far as a refusal said that it goes; tells how it ended."""
        promised = 0
        while self.taken < self.steps:
            count = min(self.steps - self.taken, promised or self._batch())
            answer = self._take(count)
            if answer is None:
                promised = max(0, promised - count)
                continue
            assert not promised, ("what was promised is refused", self.followed, answer)
            outcome = self._follow(answer, count)
            if isinstance(outcome, str):
                return outcome
            promised = outcome
        return "finished"

    def _batch(self) -> int:
        """A number of steps: one by one where that does not take long."""
        largest = max(1, self.steps // 12)
        return self.random.choice([1, largest, self.random.randint(1, largest)]) if self.steps > 30 else 1

    def _take(self, count: int) -> dict[str, Any] | None:
        """Take steps; returns the refusal, if any."""
        expected = {"expected_steps": self.steps} if self.tells_steps else {}
        event = sampled(self.noise, self.rate)
        if self.grants:
            body = {"plan": [{"event": event, "count": count}], **expected}
            reply = self.ledger.post(f"/v1/runs/{self.run}/reservations", body, "trainer")
            if reply.status_code == 201:
                done = {"steps_executed": count}
                ended = self.ledger.post(f"/v1/reservations/{reply.json()['id']}/commit", done, "trainer")
                assert ended.status_code == 200, ended.text
        else:
            body = {"event": event, "count": count, "first_step": self.taken, **expected}
            reply = self.ledger.post(f"/v1/runs/{self.run}/steps", body, "trainer")
        if reply.status_code in {200, 201}:
            self.taken += count
            return None
        assert reply.status_code == 403, reply.text
        refusal: dict[str, Any] = reply.json()
        return refusal

    def _follow(self, refusal: dict[str, Any], count: int) -> int | str:
        """Take one of the alternatives; returns the number of steps that it promises, or how the training ends."""
        expected = self.steps if self.tells_steps else self._expected()
        assert refusal["steps_needed"] == (count if expected is None else max(count, expected - self.taken))
        offered = {each["type"]: each for each in refusal["alternatives"]}
        missing = {each["type"]: each["reason"] for each in refusal["unavailable_alternatives"]}
        assert {"more_noise", "higher_limit"} <= offered.keys() | missing.keys()
        assert refusal["exhausted"] is (missing.get("more_noise") == "exhausted")
        self.followed += [f"no {kind}: {reason}" for kind, reason in missing.items()]
        if not self.raises_limits:
            offered.pop("higher_limit", None)
        if not offered:
            return "stated that it cannot"
        chosen = offered[self.random.choice(sorted(offered))]
        self.followed.append(chosen["type"])
        assert chosen["steps"] <= refusal["steps_needed"]
        match chosen["type"]:
            case "more_noise":
                assert chosen["noise_multiplier"] > self.noise
                self.noise = chosen["noise_multiplier"]
            case "higher_limit":
                for limit in chosen["limits"]:
                    raise_limit(self.ledger, limit["account"], limit["epsilon"], limit["delta"])
            case "same_noise" if len(offered) == 1:
                assert self._take(chosen["steps"]) is None
                return "stated that it cannot"
        return int(chosen["steps"])

    def _expected(self) -> int | None:
        expected: int | None = self.ledger.get(f"/v1/runs/{self.run}").json()["expected_steps"]
        return expected


def raise_limit(ledger: Ledger, account: str, epsilon: float, delta: float) -> None:
    """Raise a limit as two persons do."""
    body = {"limit": {"epsilon": epsilon, "delta": delta}, "reason": "The training shall finish."}
    made = ledger.post(f"/v1/accounts/{account}/limit", body, "planner", If_Match="*")
    assert made.status_code == 201, made.text
    reply = ledger.post(f"/v1/proposals/{made.json()['id']}/approve", {}, "privacy_officer")
    assert reply.status_code == 200, reply.text


def random_training(ledger: Ledger, seed: int) -> Training:
    """Furnish a ledger with a tree of depth 1 to 3, other teams' spending, and a run to train."""
    random = Random(seed)  # noqa: S311 - a random test
    steps = round(10 ** random.uniform(0, 4))
    rate = random.choice([1, 0.5, 0.1, 0.02, 0.004])
    noise = round(random.uniform(0.6, 2.0) if rate < 1 else random.uniform(2, 60), 2)

    def limit(spread: float = 0.6) -> dict[str, float]:
        return {"epsilon": round(10 ** random.uniform(-0.3, spread), 3), "delta": DELTA}

    def planned() -> dict[str, Any]:
        if random.random() < 0.6:
            return {}
        other = sampled(noise * random.choice([1, 1, 0.8, 3]), random.choice([rate, rate, 0.01]))
        return {"planned": [{"event": other, "count": random.choice([steps, 10 * steps, 10**9])}]}

    ledger.population("people", limit=limit(1.0), **planned(), **(ATTESTED if random.random() < 0.2 else {}))
    path = "people"
    for depth in range(random.randint(1, 3)):
        path = str(ledger.budget(f"level-{depth}", path, limit=limit(), **planned())["path"])
        if random.random() < 0.5:
            _spend(ledger, random, path, rate)
    terms: dict[str, Any] = {"limit": limit(), **planned()} if random.random() < 0.3 else {}
    known = random.choice(["run", "request", "nothing"])
    if known == "run":
        terms = {name: value for name, value in terms.items() if name != "planned"} | {"expected_steps": steps}
    if random.random() < 0.2:
        terms["event"] = None
    else:
        terms["event"] = sampled(noise, rate)
    if random.random() < 0.2:
        ledger.population("others", limit=limit(1.0), **planned())
        second = str(ledger.budget("second", "others", limit=limit(), **planned())["path"])
        made = ledger.post("/v1/runs", {"name": "model", "budgets": [path, second], **terms})
        assert made.status_code == 201, made.text
        run = str(made.json()["id"])
    else:
        run = ledger.run(path, **terms)
    if random.random() < 0.3:
        _set_policy(ledger, random, path)
    grants, raises = random.random() < 0.3, random.random() < 0.5
    return Training(ledger, random, run, steps, noise, rate, known == "request", grants, raises)


def _set_policy(ledger: Ledger, random: Random, path: str) -> None:
    """Set a policy of an account on a path that forbids some alternatives, and not the steps themselves."""
    rules = random.choice([{"deviations": "refuse"}, {"max_delta": DELTA / 2}, {"max_epsilon": 1.5}])
    name = random.choice(["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)])
    body = {"policy": rules, "reason": "The board has met."}
    kind = "budgets" if "/" in name else "populations"
    [account] = ledger.get(f"/v1/{kind}?path={name}").json()["items"]
    headers = ledger.headers() | {"If-Match": "*"}
    reply = ledger.http.put(f"/v1/accounts/{account['id']}/policy", json=body, headers=headers)
    assert reply.status_code == 200, reply.text


def _spend(ledger: Ledger, random: Random, path: str, rate: float) -> None:
    """Let another team spend a part of a budget."""
    event = sampled(random.uniform(0.8, 3) if rate < 1 else random.uniform(5, 60), rate)
    run = ledger.run(path, name="other", event=event)
    left = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
    count = min(round(left * random.choice([0.1, 0.5, 0.9, 1])), 10**9)
    if count:
        reply: httpx2.Response = ledger.post(f"/v1/runs/{run}/steps", {"count": count}, "trainer")
        assert reply.status_code == 200, reply.text
