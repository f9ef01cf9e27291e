"""Responses to creating requests, stored for their idempotency key with the effect."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from sqlalchemy import Connection

from app.api.problems import PROBLEM_JSON
from app.api.route import ContextDep, IdempotencyKey
from app.ledger.errors import InvalidInputError
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import Effect, run_effect
from app.service.idempotency import StoredResponse, run_idempotent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The idempotency key of a request, if any, and what it identifies."""

    context: RequestContext
    operation: tuple[str, str]
    key: str | None

    def respond(
        self,
        effect: Effect[T],
        render: Callable[[T], BaseModel | StoredResponse],
        body: BaseModel | None = None,
        *,
        private: bool = False,
    ) -> Response:
        """Run the effect of a use case and respond, or replay the stored response.

        Args:
            effect: of the use case.
            render: builds the response, inside of the effect's transaction; a schema means 201.
            body: of the request.
            private: whether no other caller may get the response with the key.
        """
        content = [*self.operation, body.model_dump(mode="json") if body else {}]
        fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

        def stored(tx: Connection) -> StoredResponse:
            rendered = render(effect(tx))
            return rendered if isinstance(rendered, StoredResponse) else as_response(rendered)

        answer = run_idempotent(self.context, stored, self.key, fingerprint, private=private)
        headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
        kind = PROBLEM_JSON if answer.status >= HTTPStatus.BAD_REQUEST else "application/json"
        return Response(answer.body, answer.status, headers, kind)

    def respond_with_secret(self, effect: Effect[T], render: Callable[[T], BaseModel], if_lost: str) -> Response:
        """Run the effect and respond with a secret, which is not stored.

        Args:
            effect: of the use case.
            render: builds the response.
            if_lost: advice for a lost response.

        Raises:
            InvalidInputError: the request has an idempotency key.
        """
        if self.key is not None:
            raise InvalidInputError(
                "This request carries no Idempotency-Key: its reply, with the secret in it, would be stored. If the "
                f"reply was lost, {if_lost}."
            )
        content = render(run_effect(self.context, effect)).model_dump_json()
        return Response(content, HTTPStatus.CREATED, media_type="application/json")


def as_response(content: BaseModel, status: HTTPStatus = HTTPStatus.CREATED) -> StoredResponse:
    """Build a response to be stored."""
    return StoredResponse(content.model_dump_json(), status)


# A coroutine although it awaits nothing: FastAPI runs plain functions in threads.
async def _idempotency(request: Request, context: ContextDep, key: IdempotencyKey = None) -> Idempotency:
    return Idempotency(context, (request.method, request.url.path), key)


IdempotencyDep = Annotated[Idempotency, Depends(_idempotency)]
