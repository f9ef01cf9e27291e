"""Train with differential privacy: `python train.py --budget icu/models --after-refusal more_noise`.

`--after-refusal` is what the program does when the ledger refuses a step:

    raise           nothing: the error is printed
    more_noise      goes on with more noise, if that is enough for all remaining steps
    same_noise      takes as many steps as fit, and ends the run
    higher_limit    requests the limits that are needed, waits for the decision, and goes on if it is approved
    wait            waits until somebody has raised the limits
"""

import argparse
import time

from epsilon_ledger import BudgetExceededError, LedgerClient, Limit, Run, gaussian, poisson_sampled

RATE = 0.05
EPOCH = 20
"""Steps that are authorized together, before the first of them."""

POLL_SECONDS = 0.2


class Training:
    """A loop whose steps a run authorizes."""

    def __init__(self, run: Run, steps: int, noise_multiplier: float) -> None:
        self.run = run
        self.steps = steps
        self.taken = 0
        self.noise_multiplier = noise_multiplier

    def train(self, steps: int) -> None:
        """Take some steps.

        Raises:
            BudgetExceededError: an epoch was refused; none of its steps was taken.
        """
        event = poisson_sampled(RATE, gaussian(self.noise_multiplier))
        for first in range(0, steps, EPOCH):
            count = min(EPOCH, steps - first)
            self.run.authorize(count, event=event)
            self.taken += count  # the steps of the optimizer, each with this noise

    def train_to_the_end(self) -> None:
        """Take all steps that are left."""
        self.train(self.steps - self.taken)


def follow(ledger: LedgerClient, advice: str, training: Training, refusal: BudgetExceededError) -> None:
    """Follow the advice of a refusal.

    Raises:
        BudgetExceededError: it is not offered, or it does not lead to the end of the training.
    """
    run = training.run
    if advice == "more_noise" and refusal.more_noise is not None:
        assert refusal.more_noise.noise_multiplier is not None
        training.noise_multiplier = refusal.more_noise.noise_multiplier
    elif advice == "same_noise" and refusal.same_noise is not None:
        training.train(refusal.same_noise.steps)
        raise refusal
    elif advice == "higher_limit" and refusal.higher_limit is not None:
        for each in refusal.higher_limit.limits or ():
            asked = run.request_limit("All epochs, as planned.", Limit(each.epsilon, each.delta), account=each.account)
            print(f"requested {asked.id}: epsilon {each.epsilon} of {each.account_path} ({asked.status})", flush=True)
            while asked.status == "open":
                time.sleep(POLL_SECONDS)
                asked = ledger.get_proposal(asked.id)
            print(f"{asked.status}: {asked.decision_reason}", flush=True)
            if asked.status != "approved":
                raise refusal
    elif advice == "wait":
        wait_for_room(run, refusal.steps_needed)
    else:
        raise refusal
    training.train_to_the_end()


def wait_for_room(run: Run, steps: int) -> None:
    """Wait until all steps that are left fit."""
    while True:
        try:
            run.preview(steps)
        except BudgetExceededError:
            time.sleep(POLL_SECONDS)
        else:
            print(f"{steps} more steps fit now", flush=True)
            return


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
        print(f"{run.status} after {training.taken} of {training.steps} steps")


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
