"""Two runs of one population, exactly: what a limit below the population's bounds, and what it does not (ADR 0005).

Run A answers a bit of one record by randomized response. Run B then takes noise 100 if A answered 1, else 101. All of
B's steps fit its limit, and yet what B releases repeats A's answer.
"""

from collections.abc import Callable, Mapping
from math import exp, fsum, log
from statistics import NormalDist

import pytest

from app.accounting.events import EpsilonDelta, Gaussian
from app.ledger.accounts.account import Account
from app.ledger.filter.limits import Limit
from tests.ledger.conftest import admitted, chained, make_account

POPULATION, A, B = Limit(5.0, 1e-5), Limit(4.2, 1e-6), Limit(0.1, 1e-6)
ANSWER = 4.0
NOISES = {1: 100.0, 0: 101.0}

Probabilities = Mapping[int, float]
"""Of A's answers."""
HERE: Probabilities = {1: 1 / (1 + exp(-ANSWER)), 0: 1 / (1 + exp(ANSWER))}
THERE: Probabilities = {1: HERE[0], 0: HERE[1]}


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of a Gaussian mechanism (Balle & Wang 2018, Theorem 8), at any epsilon."""
    phi: Callable[[float], float] = NormalDist().cdf
    return phi(mu / 2 - epsilon / mu) - exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def delta_of_all(epsilon: float, in_other_world: Probabilities) -> float:
    """The exact hockey-stick divergence of A's answer and B's release, where B's data have another record.

    Of each answer it is P max(0, N - e^epsilon P'/P N'), a Gaussian mechanism's delta at another epsilon.
    """
    shifts = {answer: epsilon + log(in_other_world[answer] / HERE[answer]) for answer in NOISES}
    return fsum(HERE[answer] * gaussian_delta(1 / noise, shifts[answer]) for answer, noise in NOISES.items())


def _run(name: str, limit: Limit) -> tuple[Account, ...]:
    return chained(make_account(POPULATION.epsilon, POPULATION.delta), make_account(*_of(limit), name=name))


def _of(limit: Limit) -> tuple[float, float]:
    return limit.epsilon, limit.delta


def test_both_runs_are_admitted_whatever_the_answer_was() -> None:
    for noise in NOISES.values():
        population, _ = admitted(_run("a", A), EpsilonDelta(ANSWER)).accounts
        _, run = _run("b", B)
        after = admitted(chained(population, run), Gaussian(noise)).accounts
        assert max(after[-1].used(), after[0].used()) <= 1


def test_release_of_a_run_is_not_private_at_its_own_limit() -> None:
    # B's noise alone tells the answer: the old sentence, "all that was released under this account is (epsilon,
    # delta)-differentially private at its limit", is false.
    assert delta_of_all(B.epsilon, THERE) == pytest.approx(0.962136, abs=1e-6)
    assert delta_of_all(ANSWER - 0.1, THERE) > B.delta


def test_run_adds_no_more_than_its_limit_to_what_was_released_outside_of_it() -> None:
    # In both worlds A answers from the same data.
    assert delta_of_all(B.epsilon, HERE) <= B.delta
    assert delta_of_all(0.0, HERE) > B.delta, "it adds something"


def test_releases_of_both_runs_are_within_limit_of_their_population() -> None:
    assert delta_of_all(POPULATION.epsilon, THERE) <= POPULATION.delta
