"""Metered noise, clipping and private training: `pip install 'epsilon-ledger-client[numpy]'`.

Every mechanism has the `event` of its next release. Every releasing method authorizes exactly this event before it
draws noise; after a refusal nothing has changed.
"""

try:
    import cryptography
    import numpy as np
except ModuleNotFoundError as error:
    raise ImportError(
        f"epsilon_ledger.mechanisms needs {error.name}, which is not installed: "
        "pip install 'epsilon-ledger-client[numpy]'"
    ) from error

from epsilon_ledger.mechanisms.adaptive import AdaptiveClipping
from epsilon_ledger.mechanisms.gaussian import GaussianNoise
from epsilon_ledger.mechanisms.laplace import LaplaceNoise
from epsilon_ledger.mechanisms.mechanism import ClippedSumMechanism
from epsilon_ledger.mechanisms.optimizers import DpAdam, DpMomentum, DpSgd
from epsilon_ledger.mechanisms.randomness import SecureRandomness
from epsilon_ledger.mechanisms.releases import Authorizer, Unmetered
from epsilon_ledger.mechanisms.sampling import MicrobatchSampler, PoissonSampler, Sampler
from epsilon_ledger.mechanisms.training import DpOptimizer

__all__ = [
    "AdaptiveClipping",
    "Authorizer",
    "ClippedSumMechanism",
    "DpAdam",
    "DpMomentum",
    "DpOptimizer",
    "DpSgd",
    "GaussianNoise",
    "LaplaceNoise",
    "MicrobatchSampler",
    "PoissonSampler",
    "Sampler",
    "SecureRandomness",
    "Unmetered",
]

del cryptography, np
