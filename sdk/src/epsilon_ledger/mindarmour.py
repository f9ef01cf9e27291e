"""MindArmour's names over the ledger's mechanisms, without MindSpore.

    from epsilon_ledger.mindarmour import DPModel, NoiseMechanismsFactory, PrivacyMonitorFactory

instead of `mindarmour.privacy.diff_privacy`, and `run=` for the model: it asks before each step. Signatures, defaults
and errors are MindArmour's; what is the ledger's own follows as keywords. `PrivacyWarning` says where a default
protects less, or costs more, than it seems to. Needs `pip install "epsilon-ledger-client[mindarmour]"`.
"""

try:
    import cryptography
    import numpy as np
except ModuleNotFoundError as error:
    raise ImportError(
        f"epsilon_ledger.mindarmour needs {error.name}, which is not installed: "
        "pip install 'epsilon-ledger-client[mindarmour]'"
    ) from error

from epsilon_ledger._mindarmour.callbacks import RunContext
from epsilon_ledger._mindarmour.clipping import AdaClippingWithGaussianRandom, ClipMechanismsFactory
from epsilon_ledger._mindarmour.dangers import PrivacyWarning
from epsilon_ledger._mindarmour.model import DPModel
from epsilon_ledger._mindarmour.monitors import PrivacyMonitorFactory, RDPMonitor, ZCDPMonitor
from epsilon_ledger._mindarmour.noise import NoiseAdaGaussianRandom, NoiseGaussianRandom, NoiseMechanismsFactory
from epsilon_ledger._mindarmour.optimizers import SGD, Adam, DPOptimizer, DPOptimizerClassFactory, Momentum

__all__ = [
    "SGD",
    "AdaClippingWithGaussianRandom",
    "Adam",
    "ClipMechanismsFactory",
    "DPModel",
    "DPOptimizer",
    "DPOptimizerClassFactory",
    "Momentum",
    "NoiseAdaGaussianRandom",
    "NoiseGaussianRandom",
    "NoiseMechanismsFactory",
    "PrivacyMonitorFactory",
    "PrivacyWarning",
    "RDPMonitor",
    "RunContext",
    "ZCDPMonitor",
]

del cryptography, np
