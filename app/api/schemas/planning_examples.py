"""OpenAPI examples of planning responses, rounded."""

from typing import Any

from app.service.planning.costs import ADAPTIVE, CLASSIC, RDP

EPSILON_EXAMPLE: dict[str, Any] = {
    "epsilon": 3.847,
    "delta": 1e-5,
    "optimal_order": 5.9665,
    "accountants": [
        {"name": "rdp", "epsilon": 3.847, "optimal_order": 5.9665, "note": RDP},
        {"name": "adaptive", "epsilon": 3.85522, "optimal_order": None, "note": ADAPTIVE},
        {"name": "rdp_classic", "epsilon": 4.3762, "optimal_order": 6.3559, "note": CLASSIC},
    ],
    "warnings": [],
}
DELTA_EXAMPLE: dict[str, Any] = {
    "delta": 4.6147e-6,
    "epsilon": 4.0,
    "optimal_order": 6.1594,
    "accountants": [
        {"name": "rdp", "delta": 4.6147e-6, "optimal_order": 6.1594, "note": RDP},
        {"name": "rdp_classic", "delta": 6.9402e-5, "optimal_order": 5.9665, "note": CLASSIC},
    ],
    "warnings": [],
}
TRAJECTORY_EXAMPLE: dict[str, Any] = {
    "points": [
        {"step": 1, "epsilon": 0.76828},
        {"step": 2500, "epsilon": 2.6682},
        {"step": 5000, "epsilon": 3.847},
    ],
    "steps": 5000,
    "delta": 1e-5,
    "warnings": [],
}
NOISE_MULTIPLIER_EXAMPLE: dict[str, Any] = {
    "noise_multiplier": 2.27807,
    "reachable": True,
    "event": {
        "type": "poisson_sampled",
        "sampling_probability": 0.01,
        "event": {"type": "gaussian", "noise_multiplier": 2.27807},
    },
    "epsilon": 2.0,
    "delta": 1e-5,
    "optimal_order": 10.086,
    "warnings": [],
}
SAMPLING_PROBABILITY_EXAMPLE: dict[str, Any] = {
    "sampling_probability": 0.00397641,
    "reachable": True,
    "event": {
        "type": "poisson_sampled",
        "sampling_probability": 0.00397641,
        "event": {"type": "gaussian", "noise_multiplier": 1.1},
    },
    "epsilon": 2.0,
    "delta": 1e-5,
    "optimal_order": 9.8294,
    "warnings": [],
}
MOST_STEPS_EXAMPLE: dict[str, Any] = {
    "steps": 1404,
    "epochs": 14,
    "epsilon": 1.9994,
    "epsilon_after_epochs": 1.9967,
    "delta": 1e-5,
    "optimal_order": 9.0008,
    "warnings": [],
}
LAPLACE_EXAMPLE: dict[str, Any] = {
    "scale": 4.3429,
    "bound": 10.0,
    "probability": 0.9,
    "noise_multiplier": 2.1715,
    "epsilon": 0.46052,
    "epsilon_basic": 46.052,
    "epsilon_rdp": 27.089,
    "optimal_order": 2.2416,
    "warnings": ["An epsilon above 20 is vacuous: it gives almost no protection."],
}
