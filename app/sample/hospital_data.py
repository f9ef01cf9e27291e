"""What the sample hospital group has: its populations, budgets, series of runs, data blocks and people."""

from dataclasses import dataclass, field
from typing import Final

from app.ledger.permissions import Role


@dataclass(frozen=True, slots=True)
class Population:
    """A population and its limit; `more` has further terms of its creation."""

    name: str
    epsilon: float
    delta: float
    unit: str
    size: int
    more: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """Runs under one budget; each takes a share of the steps that fit when it begins.

    Args:
        noise: noise multiplier of DP-SGD.
        rate: sampling probability.
        shares: of the steps that remain, for each run.
        ends: how each run ends: completed, aborted, paused, active, refused or overdrawn.
    """

    budget: str
    names: tuple[str, ...]
    noise: float
    rate: float
    shares: tuple[float, ...]
    ends: tuple[str, ...]


POPULATIONS: Final = (
    Population("cardiology-registry", 8.0, 1e-6, "patient", 46_520),
    Population("stroke-registry", 4.0, 1e-5, "patient", 8_100),
    Population("imaging-archive", 10.0, 1e-6, "patient", 120_000),
    Population("emergency-visits", 6.0, 1e-6, "patient", 210_000),
    Population("insurance-claims", 3.0, 1e-7, "insured person", 480_000),
    Population("genome-archive", 4.0, 1e-6, "donor", 31_400),
    Population("staff-survey", 1.0, 1e-5, "employee", 2_300),
    Population(
        "wearables",
        5.0,
        1e-6,
        "device user",
        15_000,
        {"composition": "parallel", "attestation": "By month of recording."},
    ),
)

OWNERS: Final = {
    "cardiology-registry": "Dr. Amara Osei",
    "stroke-registry": "Dr. Erik Holm",
    "imaging-archive": "Mei-Ling Tan",
    "emergency-visits": "Sofia Marchetti",
    "insurance-claims": "Priya Raman",
    "genome-archive": "Dr. Noor Haddad",
    "staff-survey": "Lena Fischer",
    "wearables": "Jonas Brandt",
}
"""Whom to call about a population, its budgets and its runs."""

FRAMEWORKS: Final = ("opacus", "lightning", "numpy")

BUDGETS: Final = (
    ("cardiology-registry", "mortality", 3.0),
    ("cardiology-registry", "readmission", 4.0),
    ("cardiology-registry/readmission", "weekly-model", 1.5),
    ("cardiology-registry/readmission", "research", 2.0),
    ("cardiology-registry", "ecg-foundation", 5.0),
    ("stroke-registry", "outcome-models", 2.5),
    ("stroke-registry", "thrombolysis", 1.5),
    ("stroke-registry", "statistics", 0.5),
    ("imaging-archive", "segmentation", 6.0),
    ("imaging-archive", "denoising", 2.0),
    ("imaging-archive", "triage", 3.0),
    ("imaging-archive/triage", "chest-x-ray", 1.5),
    ("imaging-archive/triage", "head-ct", 1.5),
    ("emergency-visits", "arrival-forecast", 2.0),
    ("emergency-visits", "sepsis-alert", 4.0),
    ("emergency-visits", "vendor-evaluation", 1.0),
    ("insurance-claims", "cost-model", 2.0),
    ("insurance-claims", "fraud", 1.0),
    ("genome-archive", "rare-diseases", 4.0),
    ("genome-archive", "risk-scores", 4.0),
    ("staff-survey", "burnout", 0.8),
    ("staff-survey", "annual-report", 0.4),
)

SERIES: Final = (
    Series(
        "cardiology-registry/mortality",
        ("lstm-mortality", "lstm-mortality-v2", "transformer-mortality", "calibration", "lstm-mortality-v3"),
        *(1.1, 0.01, (0.25, 0.2, 0.5, 0.1, 0.3)),
        ("completed", "aborted", "completed", "completed", "active"),
    ),
    Series(
        "cardiology-registry/readmission/weekly-model",
        tuple(f"week-{week}" for week in range(40, 47)),
        *(1.4, 0.005, (0.2, 0.2, 0.25, 0.25, 0.3, 0.4, 0.3)),
        ("completed", "completed", "completed", "completed", "completed", "completed", "active"),
    ),
    Series(
        "cardiology-registry/readmission/research",
        ("gradient-boosting", "tabnet", "logistic-baseline"),
        *(1.6, 0.01, (0.2, 0.15, 0.1)),
        ("completed", "paused", "completed"),
    ),
    Series(
        "cardiology-registry/ecg-foundation",
        ("ecg-encoder-small", "ecg-encoder-base"),
        *(1.2, 0.004, (0.1, 0.3)),
        ("completed", "active"),
    ),
    Series(
        "stroke-registry/outcome-models",
        ("transformer", "transformer-long", "ordinal-regression", "mrs-90-days"),
        *(0.9, 0.01, (0.35, 0.4, 0.5, 0.97)),
        ("completed", "aborted", "completed", "refused"),
    ),
    Series(
        "stroke-registry/thrombolysis",
        ("door-to-needle", "door-to-needle-v2"),
        *(1.3, 0.01, (0.5, 0.8)),
        ("completed", "active"),
    ),
    Series("stroke-registry/statistics", ("monthly-counts",), 4.0, 0.05, (0.6,), ("active",)),
    Series(
        "imaging-archive/segmentation",
        ("unet", "unet-attention", "swin-unetr", "unet-3d"),
        *(1.3, 0.002, (0.15, 0.1, 0.2, 0.1)),
        ("completed", "aborted", "completed", "paused"),
    ),
    Series("imaging-archive/denoising", ("baseline", "diffusion"), 2.0, 0.003, (0.3, 0.2), ("completed", "active")),
    Series(
        "imaging-archive/triage/chest-x-ray",
        ("densenet-121", "densenet-121-finetune", "vit-small", "vit-base"),
        *(1.1, 0.004, (0.3, 0.4, 0.5, 0.96)),
        ("completed", "completed", "aborted", "refused"),
    ),
    Series(
        "imaging-archive/triage/head-ct",
        ("bleed-detector", "bleed-detector-v2", "midline-shift"),
        *(1.2, 0.003, (0.2, 0.3, 0.2)),
        ("completed", "active", "paused"),
    ),
    Series(
        "emergency-visits/arrival-forecast",
        ("seasonal-arima", "prophet", "deep-ar", "deep-ar-holidays"),
        *(1.5, 0.002, (0.2, 0.2, 0.3, 0.2)),
        ("completed", "aborted", "completed", "active"),
    ),
    Series(
        "emergency-visits/sepsis-alert",
        ("sepsis-lstm", "sepsis-tcn", "sepsis-tcn-v2"),
        *(1.0, 0.003, (0.2, 0.3, 0.4)),
        ("completed", "completed", "active"),
    ),
    Series(
        "emergency-visits/vendor-evaluation",
        ("vendor-a", "vendor-b", "vendor-c"),
        *(2.2, 0.004, (0.3, 0.5, 0.99)),
        ("completed", "completed", "refused"),
    ),
    Series(
        "insurance-claims/cost-model",
        ("glm-frequency", "glm-severity", "neural-cost"),
        *(1.3, 0.001, (0.2, 0.25, 0.5)),
        ("completed", "completed", "active"),
    ),
    Series(
        "insurance-claims/fraud", ("isolation-forest", "autoencoder"), 1.8, 0.001, (0.4, 0.6), ("completed", "paused")
    ),
    Series("staff-survey/burnout", ("logistic-regression",), 1.4, 0.01, (0.9,), ("overdrawn",)),
    Series("staff-survey/annual-report", ("tables-2026",), 6.0, 0.2, (0.5,), ("completed",)),
)

SHARED: Final = "genome-archive"
"""The population that shares out its budget among trainings, which wait for it."""

UNLOCK: Final = {"type": "over_time", "over_seconds": 40 * 86_400, "parts": 40}
"""A fortieth of it each day."""

SHARES: Final = (("rare-diseases", 0.3, 1.0, 2.0), ("risk-scores", 0.2, 0.7, 1.0))
"""Budget, minimum, maximum and weight."""


@dataclass(frozen=True, slots=True)
class QueuedTraining:
    """A training that reserves its steps under the shared population.

    Args:
        days: before the end of the history at which it arrives.
        executed: part of its steps that is committed a day later; None: they stay reserved, or wait.
        priority: that the privacy office gives it.
    """

    budget: str
    name: str
    days: float
    noise: float
    steps: int
    executed: float | None = None
    priority: int = 0


QUEUED_TRAININGS: Final = (
    QueuedTraining("risk-scores", "polygenic-score", 13.0, 1.6, 1500, 0.9),
    QueuedTraining("rare-diseases", "variant-effects", 9.0, 1.4, 4000, 0.8),
    QueuedTraining("risk-scores", "polygenic-score-v2", 6.0, 1.3, 7000),
    QueuedTraining("rare-diseases", "exome-encoder", 2.3, 1.1, 9000),
    QueuedTraining("risk-scores", "ancestry-adjustment", 1.4, 1.4, 8000),
    QueuedTraining("rare-diseases", "carrier-screening", 0.4, 1.1, 4500, priority=5),
)

BLOCKS: Final = (("2026-08", "2026-08-01", "2026-09-01"), ("2026-09", "2026-09-01", "2026-10-01"))

PEOPLE: Final = (
    ("Ines Okafor", Role.ADMIN, None),
    ("Dr. Jana Weber", Role.PRIVACY_OFFICER, None),
    ("Tomás Herrera", Role.BUDGET_ADMIN, None),
    ("Aiko Lindqvist", Role.PLANNER, "stroke-registry"),
    ("Audit and Risk", Role.AUDITOR, None),
    ("trainer of the cluster", Role.TRAINER, None),
    ("Wall dashboard", Role.VIEWER, None),
)
