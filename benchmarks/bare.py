"""Baseline of a step: the same models over HTTP, without storage."""

from fastapi import FastAPI

from app.api.schemas.steps import ADMITTED_EXAMPLE, AuthorizeSteps, StepAuthorization

app = FastAPI(openapi_url=None)


@app.post("/steps")
async def take(body: AuthorizeSteps) -> StepAuthorization:
    """Validate the body, and respond at once."""
    del body
    return StepAuthorization.model_validate(ADMITTED_EXAMPLE)
