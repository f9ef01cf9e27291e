"""Train a classifier with differential privacy.

    python train.py --budget icu/models --steps 600 --after-refusal more_noise

`--after-refusal` is what the program does when the ledger refuses a step:

    raise           nothing: the error is printed
    stop            ends the run
    more_noise      goes on with more noise, if that is enough for all remaining steps
    same_noise      takes as many steps as fit, and ends the run
    higher_limit    requests the limits that are needed, waits for the decision, and goes on if it is approved
    wait            waits until somebody has raised the limits
"""

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit, Proposal, Run, gaussian, poisson_sampled
from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler, Unmetered

RECORDS, FEATURES, RATE = 400, 5, 0.05
EPOCH = 20
"""Steps that are authorized together, before the first of them."""

POLL_SECONDS = 0.2

Floats = NDArray[np.float64]


class Training:
    """A logistic regression on made-up patients, whose steps a run authorizes."""

    def __init__(self, run: Run, steps: int, noise_multiplier: float) -> None:
        rng = np.random.default_rng(7)
        self.features = rng.normal(size=(RECORDS, FEATURES))
        self.labels = (self.features @ np.array([2.0, -1.0, 1.0, 0.5, 0.0]) > 0).astype(float)
        self.weights = np.zeros(FEATURES)
        self.run = run
        self.steps = steps
        self.taken = 0
        self.use_noise(noise_multiplier)

    def use_noise(self, noise_multiplier: float) -> None:
        """Take the next steps with this noise."""
        self.optimizer = DpSgd(
            self.weights,
            noise=GaussianNoise(noise_multiplier, clipping_norm=1.0),
            sampler=PoissonSampler(RECORDS, RATE),
            run=Unmetered("authorized by the epoch"),
            learning_rate=0.3,
        )

    def train(self, steps: int) -> None:
        """Take some steps.

        Raises:
            BudgetExceededError: an epoch was refused; the weights are as they were before it.
        """
        for first in range(0, steps, EPOCH):
            count = min(EPOCH, steps - first)
            self.run.authorize(count, event=self.optimizer.event)
            for _ in range(count):
                chosen = self.optimizer.sample()
                self.optimizer.step(self.gradients(chosen))
            self.taken += count

    def train_to_the_end(self) -> None:
        """Take all steps that are left."""
        self.train(self.steps - self.taken)

    def gradients(self, chosen: NDArray[np.intp]) -> Floats:
        """Compute the gradient of each chosen record, (records, features)."""
        features = self.features[chosen]
        residuals = 1 / (1 + np.exp(-features @ self.weights)) - self.labels[chosen]
        gradients: Floats = residuals[:, np.newaxis] * features
        return gradients

    def accuracy(self) -> float:
        """Compute the share of correct predictions."""
        return float(np.mean((self.features @ self.weights > 0) == (self.labels > 0)))


def follow(ledger: LedgerClient, advice: str, training: Training, refusal: BudgetExceededError) -> None:
    """Follow the advice of a refusal.

    Raises:
        BudgetExceededError: it is not offered, or it does not lead to the end of the training.
    """
    run = training.run
    if advice == "more_noise" and refusal.more_noise is not None:
        assert refusal.more_noise.noise_multiplier is not None
        training.use_noise(refusal.more_noise.noise_multiplier)
        training.train_to_the_end()
    elif advice == "same_noise" and refusal.same_noise is not None:
        training.train(refusal.same_noise.steps)
        raise refusal
    elif advice == "higher_limit" and refusal.higher_limit is not None:
        requests = []
        for each in refusal.higher_limit.limits or ():
            asked = run.request_limit("All epochs, as planned.", Limit(each.epsilon, each.delta), account=each.account)
            print(f"requested {asked.id}: epsilon {each.epsilon} of {each.account_path} ({asked.status})", flush=True)
            requests.append(asked)
        for asked in requests:
            decided = wait_for_decision(ledger, asked)
            print(f"{decided.status}: {decided.decision_reason}", flush=True)
            if decided.status != "approved":
                raise refusal
        training.train_to_the_end()
    elif advice == "wait":
        wait_for_room(run, refusal.steps_needed)
        training.train_to_the_end()
    else:
        raise refusal


def wait_for_decision(ledger: LedgerClient, asked: Proposal) -> Proposal:
    """Wait until another person has decided."""
    for _ in attempts():
        asked = ledger.get_proposal(asked.id)
        if asked.status != "open":
            break
    return asked


def wait_for_room(run: Run, steps: int) -> None:
    """Wait until all steps that are left fit."""
    for _ in attempts():
        try:
            run.preview(steps)
        except BudgetExceededError:
            continue
        print(f"{steps} more steps fit now", flush=True)
        return


def attempts() -> Iterator[None]:
    """Look again after a while, for ever."""
    while True:
        yield
        time.sleep(POLL_SECONDS)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument("--after-refusal", default="raise")
    options = parser.parse_args()
    event = poisson_sampled(RATE, gaussian(options.noise_multiplier))
    with LedgerClient() as ledger:
        run = ledger.create_run("risk-model", budget=options.budget, event=event, expected_steps=options.steps)
        print(run.url, flush=True)
        training = Training(run, options.steps, options.noise_multiplier)
        try:
            with run:  # its end is recorded: finished, or budget used up
                train_and_follow(ledger, training, options.after_refusal)
        except BudgetExceededError:
            if options.after_refusal == "raise":
                raise
        print(f"{run.status} after {training.taken} of {training.steps} steps, accuracy {training.accuracy():.2f}")


def train_and_follow(ledger: LedgerClient, training: Training, advice: str) -> None:
    """Train, and follow the advice of the first refusal."""
    try:
        training.train_to_the_end()
    except BudgetExceededError as refusal:
        if advice == "raise":
            raise
        print(refusal, flush=True)
        follow(ledger, advice, training, refusal)


if __name__ == "__main__":
    main()
