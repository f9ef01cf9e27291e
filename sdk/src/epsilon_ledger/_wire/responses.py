"""Parsing of HTTP responses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Generic, TypeVar, cast

from epsilon_ledger._wire.decoding import MalformedError, decode, parse_json
from epsilon_ledger._wire.errors import ApprovalRequiredError, UnexpectedResponseError
from epsilon_ledger._wire.problem_errors import problem_error
from epsilon_ledger._wire.problems import Problem, ProblemError

T = TypeVar("T")

# Each look at a member of an enumeration is a call.
_OK, _ACCEPTED, _MULTIPLE_CHOICES = (
    int(status) for status in (HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.MULTIPLE_CHOICES)
)


@dataclass(slots=True)
class HttpAnswer:
    """An HTTP response that was read to its end.

    Args:
        status: HTTP status.
        headers: by names that are compared in lower case.
        content: the body, decoded from its content coding.
        url: of the request.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    url: str

    @property
    def is_success(self) -> bool:
        """Whether the request was accepted."""
        return _OK <= self.status < _MULTIPLE_CHOICES


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A pending proposal: its id, and its content in a sentence."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class _RawPage:
    items: tuple[Mapping[str, object], ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list, and the cursor of the next one; None: it is the last."""

    items: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Response:
    """A successful response.

    Args:
        status: HTTP status.
        data: decoded JSON; bytes, if the request asked for something else.
        is_own: False if it replays the response to another process's request.
        etag: entity tag of the object, or None.
    """

    status: int
    data: object
    is_own: bool
    etag: str | None = None

    @property
    def content(self) -> bytes:
        """The bytes of a response that is not JSON."""
        return cast("bytes", self.data)

    def read(self, shape: type[T], *, waits: bool = False, until_approved: str = "it does not exist") -> T:
        """Parse the response as a value of a class.

        Args:
            shape: the class.
            waits: whether what is accepted (202) is the value, which waits, and no proposal.
            until_approved: what holds until a proposal is approved.

        Raises:
            ApprovalRequiredError: only a proposal was created.
            UnexpectedResponseError: the response has another shape.
        """
        try:
            if self.status == _ACCEPTED and not waits:
                proposal = decode(_Proposal, self.data)
                waits_for = f"Until another person approves the proposal {proposal.id}, {until_approved}."
                raise ApprovalRequiredError(f"{proposal.reason.rstrip(' .')}. {waits_for}", proposal=proposal.id)
            return self._decode(shape)
        except MalformedError as error:
            raise self._unreadable(error) from None

    def read_page(self, shape: type[T]) -> Page[T]:
        """Parse the response as a page of values of a class.

        Raises:
            UnexpectedResponseError: the response has another shape.
        """
        try:
            page = decode(_RawPage, self.data)
            return Page(tuple(decode(shape, item) for item in page.items), page.next_cursor)
        except MalformedError as error:
            raise self._unreadable(error) from None

    def _decode(self, shape: type[T]) -> T:
        """Decode an object; one with an `etag` gets the response's."""
        data = self.data
        if isinstance(data, Mapping) and "etag" in getattr(shape, "__dataclass_fields__", ()):
            data = {**data, "etag": self.etag}
        return decode(shape, data)

    def _unreadable(self, error: MalformedError) -> UnexpectedResponseError:
        return UnexpectedResponseError(f"The ledger's answer cannot be read: {error}.", status=self.status)


def read_json(answer: HttpAnswer) -> object:
    """Decode the JSON of a successful response.

    Raises:
        UnexpectedResponseError: it is not JSON.
    """
    try:
        return parse_json(answer.content)
    except (ValueError, RecursionError):
        raise UnexpectedResponseError(
            f"{answer.url} answered {answer.status} without readable JSON: is this the ledger?",
            status=answer.status,
        ) from None


def refusal(answer: HttpAnswer) -> ProblemError | UnexpectedResponseError:
    """Create the exception for an unsuccessful response."""
    problem = _problem(answer)
    if problem is None:
        return UnexpectedResponseError(
            f"{answer.url} answered {answer.status} "
            f"({answer.headers.get('content-type', 'no content type')}), which is not the ledger's way to "
            f"say no: is this its address, and is a proxy in between?",
            status=answer.status,
        )
    try:
        return problem_error(problem)
    except MalformedError as error:
        return UnexpectedResponseError(
            f"The ledger answered {problem.status} {problem.code}, but its answer cannot be read: {error}.",
            status=problem.status,
        )


def reason(answer: HttpAnswer) -> str:
    """Describe a failure that is retried: status, code and detail."""
    problem = _problem(answer)
    problem_text = f" {problem.code}: {problem.detail}".rstrip(": .") if problem else ""
    return f"status {answer.status}{problem_text}"


def retry_after(answer: HttpAnswer) -> float | None:
    """Parse Retry-After in either form to seconds from now, at least 0, or None."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def _problem(answer: HttpAnswer) -> Problem | None:
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        members = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    code, title, detail = (
        text if isinstance(text := members.get(name), str) else "" for name in ("code", "title", "detail")
    )
    return Problem(answer.status, code, title, detail, members)
