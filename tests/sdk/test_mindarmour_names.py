"""MindArmour's names, signatures and errors, as written down and as installed."""

import inspect
from operator import attrgetter
from typing import Any, TypeAlias

import pytest

from epsilon_ledger import mindarmour
from tests.sdk.fake_ledger import FakeRun

Parameters: TypeAlias = dict[str, object]

REQUIRED = inspect.Parameter.empty
NOISE: Parameters = {"norm_bound": 1.0, "initial_noise_multiplier": 1.0, "seed": 0}
CLIPPING: Parameters = {"decay_policy": "Linear", "learning_rate": 0.001, "target_unclipped_quantile": 0.9}
CLIPPING |= {"fraction_stddev": 0.01, "seed": 0}
RECORDS: Parameters = {"num_samples": REQUIRED, "batch_size": REQUIRED, "initial_noise_multiplier": 1.5}
PRINTING: Parameters = {"noise_decay_mode": "Time", "noise_decay_rate": 6e-4, "per_print_times": 50}
PRINTING |= {"dataset_sink_mode": False}
COLLECTED: Parameters = {"policy": REQUIRED, "args": REQUIRED, "kwargs": REQUIRED}
RDP: Parameters = {"max_eps": 10.0, "target_delta": 1e-3, "max_delta": None, "target_eps": None, "orders": None}
ZCDP: Parameters = {"max_eps": 10.0, "target_delta": 1e-3}
MODEL: Parameters = {"micro_batches": 2, "norm_bound": 1.0, "noise_mech": None, "clip_mech": None}
SIGNATURES: dict[str, Parameters] = {
    "NoiseGaussianRandom": NOISE | {"decay_policy": None},
    "NoiseAdaGaussianRandom": NOISE | {"noise_decay_rate": 6e-6, "decay_policy": "Exp"},
    "AdaClippingWithGaussianRandom": CLIPPING,
    "NoiseMechanismsFactory.create": {"mech_name": REQUIRED} | NOISE | {"noise_decay_rate": 6e-6, "decay_policy": None},
    "ClipMechanismsFactory.create": {"mech_name": REQUIRED} | CLIPPING,
    "PrivacyMonitorFactory.create": COLLECTED,
    "RDPMonitor": RECORDS | RDP | PRINTING,
    "ZCDPMonitor": RECORDS | ZCDP | PRINTING,
    "RDPMonitor.max_epoch_suggest": {"self": REQUIRED},
    "RDPMonitor.step_end": {"self": REQUIRED, "run_context": REQUIRED},
    "DPOptimizerClassFactory": {"micro_batches": 2},
    "DPOptimizerClassFactory.set_mechanisms": {"self": REQUIRED} | COLLECTED,
    "DPOptimizerClassFactory.create": {"self": REQUIRED, "policy": REQUIRED},
    "DPModel": MODEL,
}
"""Of MindArmour 2.0.0, in its order. DPModel's optimizer is by default the class Momentum, which neither can use."""


def named(name: str) -> Any:  # noqa: ANN401 - a class or a function
    return attrgetter(name)(mindarmour)


def parameters(name: str) -> Parameters:
    """Return the parameters that can be given by position, and those that collect others, with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(named(name)).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
        and parameter.name != "optimizer"
        and not (name == "DPModel" and parameter.name == "kwargs")
    }


def test_signatures_are_mindarmours() -> None:
    for name, wanted in SIGNATURES.items():
        assert list(parameters(name).items()) == list(wanted.items()), name


MISTAKES: list[tuple[str, tuple[object, ...], dict[str, object], type[Exception]]] = [
    ("NoiseMechanismsFactory.create", ("gauss",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("gaussian",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("Gaussian",), {"decay_policy": "Exp"}, ValueError),
    ("NoiseMechanismsFactory.create", ("AdaGaussian",), {}, NameError),
    ("NoiseMechanismsFactory.create", ("AdaGaussian",), {"decay_policy": "exp"}, NameError),
    ("NoiseMechanismsFactory.create", ("Gaussian", "1.0"), {}, TypeError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 0.0), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 0.0), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 1.0, -1), {}, ValueError),
    ("NoiseMechanismsFactory.create", ("Gaussian", 1.0, 1.0, 0.5), {}, TypeError),
    ("NoiseGaussianRandom", ("Gaussian",), {}, TypeError),
    ("NoiseAdaGaussianRandom", (1.0, 1.0, 0, 1.0), {}, ValueError),
    ("NoiseAdaGaussianRandom", (1.0, 1.0, 0, 0.0), {}, ValueError),
    ("ClipMechanismsFactory.create", ("AdaGaussian",), {}, NameError),
    ("ClipMechanismsFactory.create", ("Gaussian", "linear"), {}, ValueError),
    ("ClipMechanismsFactory.create", ("Gaussian", "Linear", 0.0), {}, ValueError),
    ("PrivacyMonitorFactory.create", ("RDP",), {}, ValueError),
    ("PrivacyMonitorFactory.create", ("rdp", "rdp", 100, 10), {}, TypeError),
    ("RDPMonitor", ("rdp", 100), {}, TypeError),
    ("RDPMonitor", (100, 100), {}, ValueError),
    ("RDPMonitor", (100, 0), {}, ValueError),
    ("RDPMonitor", (100, 10, 0.0), {}, ValueError),
    ("RDPMonitor", (100, 10), {"target_delta": None}, ValueError),
    ("RDPMonitor", (100, 10), {"target_eps": 1.0}, ValueError),
    ("RDPMonitor", (100, 10), {"orders": [1.0]}, ValueError),
    ("RDPMonitor", (100, 10), {"noise_decay_mode": "time"}, ValueError),
    ("RDPMonitor", (100, 10), {"noise_decay_rate": 1.5}, ValueError),
    ("RDPMonitor", (100, 10), {"per_print_times": 0}, ValueError),
    ("RDPMonitor", (100, 10), {"dataset_sink_mode": "no"}, TypeError),
    ("ZCDPMonitor", (100, 10), {"max_eps": 0.0}, ValueError),
    ("DPOptimizerClassFactory", ("Momentum",), {}, TypeError),
    ("DPOptimizerClassFactory", (0,), {}, ValueError),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "error"), MISTAKES)
def test_wrong_argument_fails_at_once(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], error: type[Exception], fake_run: FakeRun
) -> None:
    own = {"run": fake_run} if "Monitor" in name else {}
    with pytest.raises(error) as caught:
        named(name)(*args, **kwargs, **own)
    assert type(caught.value) is error
