"""The floor that a step is compared with: the same body and reply models over HTTP, and nothing stored."""

from fastapi import FastAPI

from app.api.schemas.steps import ADMITTED_EXAMPLE, AdmittedOut, StepsIn

app = FastAPI(openapi_url=None)


@app.post("/steps")
async def take(body: StepsIn) -> AdmittedOut:
    """Validate, and reply at once."""
    del body
    return AdmittedOut.model_validate(ADMITTED_EXAMPLE)
