"""Parsing of HTTP responses."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import httpx

from epsilon_ledger._wire.decoding import MalformedError, decode
from epsilon_ledger._wire.errors import ApprovalRequiredError, UnexpectedResponseError
from epsilon_ledger._wire.problem_errors import problem_error
from epsilon_ledger._wire.problems import Problem, ProblemError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A pending proposal: its id, and its content in a sentence."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Response:
    """A successful response.

    Args:
        status: HTTP status.
        data: decoded JSON.
        is_own: False if it replays the response to another process's request.
    """

    status: int
    data: object
    is_own: bool

    def read(self, shape: type[T]) -> T:
        """Parse the response as a value of a class.

        Raises:
            ApprovalRequiredError: only a proposal was created.
            UnexpectedResponseError: the response has another shape.
        """
        try:
            if self.status == HTTPStatus.ACCEPTED:
                proposal = decode(_Proposal, self.data)
                raise ApprovalRequiredError(
                    f"{proposal.reason} Until then it does not exist; the proposal is {proposal.id}.",
                    proposal=proposal.id,
                )
            return decode(shape, self.data)
        except MalformedError as error:
            raise UnexpectedResponseError(f"The ledger's answer cannot be read: {error}.", status=self.status) from None


def read_json(response: httpx.Response) -> object:
    """Decode the JSON of a successful response.

    Raises:
        UnexpectedResponseError: it is not JSON.
    """
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise UnexpectedResponseError(
            f"{response.request.url} answered {response.status_code} without readable JSON: is this the ledger?",
            status=response.status_code,
        ) from None


def refusal(response: httpx.Response) -> ProblemError | UnexpectedResponseError:
    """Create the exception for an unsuccessful response."""
    problem = _problem(response)
    if problem is None:
        return UnexpectedResponseError(
            f"{response.request.url} answered {response.status_code} "
            f"({response.headers.get('Content-Type', 'no content type')}), which is not the ledger's way to "
            f"say no: is this its address, and is a proxy in between?",
            status=response.status_code,
        )
    try:
        return problem_error(problem)
    except MalformedError as error:
        return UnexpectedResponseError(
            f"The ledger answered {problem.status} {problem.code}, but its answer cannot be read: {error}.",
            status=problem.status,
        )


def reason(response: httpx.Response) -> str:
    """Describe a failure that is retried: status, code and detail."""
    problem = _problem(response)
    problem_text = f" {problem.code}: {problem.detail}".rstrip(": .") if problem else ""
    return f"status {response.status_code}{problem_text}"


def retry_after(response: httpx.Response) -> float | None:
    """Parse Retry-After in either form to seconds from now, at least 0, or None."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def _problem(response: httpx.Response) -> Problem | None:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None
    try:
        members = response.json()
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    code, title, detail = (
        text if isinstance(text := members.get(name), str) else "" for name in ("code", "title", "detail")
    )
    return Problem(response.status_code, code, title, detail, members)
