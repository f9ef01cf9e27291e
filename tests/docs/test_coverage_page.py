"""The page of what the source systems do: each item is possible and held by a test, or has a reason."""

import re

import pytest

from tests.docs.markdown import ROOT, section

PAGE = (ROOT / "docs" / "reference" / "coverage.md").read_text()
SECTIONS = {"DP-SGD with Opacus": 15, "PrimiHub": 15, "MindArmour": 15, "MindSpore Federated": 9}
NAMED = {
    "PrimiHub": ("secure_mode", "noise_multiplier", "l2_norm_clip", "homo_lr_infer", "predictFileName", "delta"),
    "MindArmour": (
        *("NoiseGaussianRandom", "NoiseAdaGaussianRandom", "AdaClippingWithGaussianRandom", "NoiseMechanismsFactory"),
        *("ClipMechanismsFactory", "PrivacyMonitorFactory", "RDPMonitor", "ZCDPMonitor", "DPOptimizerClassFactory"),
        *("DPModel", "max_epoch_suggest", "step_end", "max_delta", "target_eps", "orders", "dataset_sink_mode"),
    ),
    "MindSpore Federated": ("privacy_eval_type", "laplace_eval_eps", "cluster_client_num", "eval_type", "230,260"),
}
"""What the sources call by a name."""


def rows(title: str) -> list[list[str]]:
    found = [line for line in section(PAGE, title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


@pytest.mark.parametrize(("title", "at_least"), SECTIONS.items())
def test_item_is_held_by_a_test_or_has_a_reason(title: str, at_least: int) -> None:
    assert len(rows(title)) >= at_least
    for item, answer, how, held in rows(title):
        assert answer in {"yes", "deliberately not"}, item
        assert answer == "yes" or len(how.split()) > 8, f"{item}: why not?"
        file, name = re.findall(r"`([^`]+)`", held)
        text = (ROOT / file).read_text()
        assert re.search(rf"\bdef {name}\(" if name.startswith("test_") else re.escape(name), text), (item, file, name)


def test_names_of_the_sources_have_a_row() -> None:
    for title, names in NAMED.items():
        items = " ".join(item for item, *_ in rows(title))
        assert [name for name in names if name not in items] == []
