"""Response schemas of signed statements."""

from typing import Any

from pydantic import Field

from app.api.schemas.checkpoints import SIGNATURE_EXAMPLE, Signature
from app.api.schemas.common import Output
from app.api.schemas.examples import EXAMPLE_ORGANISATION_ID, EXAMPLE_RUN_ID, example


class Statement(Output):
    """The signed cost of a model, or of all models trained on a population."""

    model_config = example(
        {
            "payload": {
                "type": "run_statement",
                "format": 1,
                "organisation": EXAMPLE_ORGANISATION_ID,
                "run": {"id": EXAMPLE_RUN_ID, "path": "mimic/icu-team/resnet", "status": "completed"},
                "loss": {"limit": {"epsilon": 3.0, "delta": 1e-5}, "epsilon_by_filter": 2.71},
            },
            "signature": SIGNATURE_EXAMPLE,
        }
    )

    payload: dict[str, Any] = Field(description="Described in docs/how-to/issue-statements.md.")
    signature: Signature
