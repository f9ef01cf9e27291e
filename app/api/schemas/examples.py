"""Shared OpenAPI examples."""

from typing import Any

from pydantic import ConfigDict

EXAMPLE_EVENT: dict[str, Any] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}
EXAMPLE_REQUEST_ID = "req_6f1c2d3e4f506172"
EXAMPLE_RUN_ID = "run_019aa5b3c4d7b0c1d2e3f4051627"
EXAMPLE_BUDGET_ID = "bud_019aa5b3c4d6a0b1c2d3e4f50617"
EXAMPLE_RESERVATION_ID = "res_019aa5b3c4d8c1d0e2f304152637"
EXAMPLE_POPULATION_ID = "pop_019aa5b3c4d50f1e2d3c4b5a6978"
EXAMPLE_ORGANISATION_ID = "org_019aa5b3c4d00f1e2d3c4b5a6978"
EXAMPLE_PROPOSAL_ID = "prp_019aa5b3c4d9d2e1f30415263748"
EXAMPLE_KEY_ID = "key_019aa5b3c4d4e5f607182930"
EXAMPLE_EXPERIMENT_ID = "exp_019aa5b3c4dae3f20415263748596a"
EXAMPLE_CURSOR = "cnVuXzAxOWFhNWIzYzRkN2IwYzFkMmUzZjQwNTE2Mjc"


def example(*examples: dict[str, Any]) -> ConfigDict:
    """Configure the examples of a schema."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})
