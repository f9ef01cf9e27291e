"""Schemas of the exchange of a workload's token for a key (RFC 8693)."""

from typing import Annotated, Final, Literal

from pydantic import Field

from app.api.schemas.api_keys import KEY_EXAMPLE, ApiKey
from app.api.schemas.common import EXAMPLE_KEY_ID, EXAMPLE_RUN_ID, Body, Output, example

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_TYPE = "urn:ietf:params:oauth:token-type:jwt"
ACCESS_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a type

MAX_TOKEN = 20_000


class ExchangeToken(Body):
    """A token of a workload's cluster or CI, to be exchanged for a key."""

    model_config = example({"grant_type": GRANT_TYPE, "subject_token": "eyJ…", "subject_token_type": JWT_TYPE})

    grant_type: Literal["urn:ietf:params:oauth:grant-type:token-exchange"]
    subject_token: Annotated[str, Field(min_length=1, max_length=MAX_TOKEN, description="The token, a signed JWT.")]
    subject_token_type: Literal["urn:ietf:params:oauth:token-type:jwt"]
    run_id: str | None = Field(
        default=None,
        description="The run that the key is for. Null: as the rule says, usually the first run that it registers.",
        examples=[EXAMPLE_RUN_ID],
    )


class ExchangedToken(Output):
    """A key that a workload got for its token."""

    model_config = example(
        {
            "access_token": f"{EXAMPLE_KEY_ID}.…",
            "issued_token_type": ACCESS_TOKEN_TYPE,
            "token_type": "Bearer",
            "expires_in": 3600,
            "key": KEY_EXAMPLE | {"single_use": True},
        }
    )

    access_token: str = Field(description="The key for the header `Authorization: Bearer ...`.")
    issued_token_type: Literal["urn:ietf:params:oauth:token-type:access_token"] = ACCESS_TOKEN_TYPE
    token_type: Literal["Bearer"] = "Bearer"  # noqa: S105 - a type
    expires_in: int = Field(description="Seconds until the key expires.")
    key: ApiKey
