"""Risks of limits in rho and mu bound the best attacks, and are exact for Gaussian noise."""

from math import sqrt

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, Gaussian, NeighboringRelation
from app.accounting.pld.accountant import pld_delta
from app.accounting.risk import Guarantee, attack_risk
from app.accounting.unit_risk import gaussian_risk, zcdp_risk

NORMAL = scipy.stats.norm


@given(st.floats(1e-6, 8))
def test_risk_of_mu_is_that_of_the_likelihood_ratio_test(mu: float) -> None:
    found = gaussian_risk(mu)
    thresholds = np.linspace(-10, 18, 4001)
    best = float(np.max(NORMAL.sf(thresholds, mu) - NORMAL.sf(thresholds)))
    assert best <= found.advantage <= best + 1e-5
    assert found.true_positive_rate == pytest.approx(NORMAL.sf(NORMAL.isf(0.01) - mu), rel=1e-9)


@given(st.floats(1e-3, 20))
def test_risk_of_rho_is_no_less_than_that_of_gaussian_noise_with_it(rho: float) -> None:
    found, gaussian = zcdp_risk(rho), gaussian_risk(sqrt(2 * rho))
    assert gaussian.advantage <= found.advantage <= min(1.0, sqrt(rho))
    assert gaussian.true_positive_rate <= found.true_positive_rate <= 1


def test_risk_of_mu_is_that_of_its_privacy_profile() -> None:
    events: dict[DpEvent, int] = {Gaussian(1.0): 1}
    profile = [
        Guarantee(each, pld_delta(events, NeighboringRelation.ADD_OR_REMOVE_ONE, each))
        for each in (0.0, *np.linspace(0.05, 6, 120))
    ]
    found = attack_risk(profile)
    assert found.advantage == pytest.approx(gaussian_risk(1.0).advantage, rel=1e-3)
    assert found.true_positive_rate == pytest.approx(gaussian_risk(1.0).true_positive_rate, rel=1e-3)


def test_own_deltas_add_to_the_risk_and_tiny_rho_has_almost_none() -> None:
    assert zcdp_risk(0.1, 0.1).advantage > zcdp_risk(0.1).advantage + 0.04
    assert zcdp_risk(5e-324).advantage < 1e-40
