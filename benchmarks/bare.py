"""Baseline of a step: the same models over HTTP, without storage."""

from typing import Final

from fastapi import FastAPI

from app.api.openapi import examples
from app.api.schemas.steps import AuthorizeSteps, StepAuthorization

ANSWER: Final = examples()["StepAuthorization"]

app = FastAPI(openapi_url=None)


@app.post("/steps")
async def take(body: AuthorizeSteps) -> StepAuthorization:
    """Validate the body, and respond at once."""
    del body
    return StepAuthorization.model_validate(ANSWER)
