"""The floor that a step is compared with: the same body and reply models over HTTP, and nothing stored."""

from fastapi import FastAPI

from app.api.schemas.steps import ADMITTED_EXAMPLE, AuthorizeSteps, StepAuthorization

app = FastAPI(openapi_url=None)


@app.post("/steps")
async def take(body: AuthorizeSteps) -> StepAuthorization:
    """Validate, and reply at once."""
    del body
    return StepAuthorization.model_validate(ADMITTED_EXAMPLE)
