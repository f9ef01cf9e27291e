"""Lists: a page is requested when it is needed, and a failure loses and repeats no item."""

import asyncio

import httpx2
import pytest

from epsilon_ledger import (
    AsyncItemIterator,
    AsyncLedgerClient,
    ItemIterator,
    LedgerClient,
    LedgerUnavailableError,
    UnexpectedResponseError,
)
from tests.sdk.fake_ledger import RUN, FakeLedger
from tests.sdk.wire import KEY, URL, Fault, Wire


class Pages(Wire):
    """A list of seven runs."""

    def arrive(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.params
        begin, size = int(query.get("after", "0")), int(query["limit"])
        items = [RUN | {"name": str(number)} for number in range(begin, min(7, begin + size))]
        following = str(begin + size) if begin + size < 7 else None
        return httpx2.Response(200, json={"items": items, "next": following})


def test_pages_are_requested_when_they_are_needed() -> None:
    pages = Pages()
    client = LedgerClient(URL, KEY, max_attempts=1, transport=pages)
    for size in (0, 201):
        with pytest.raises(ValueError, match="page_size"):
            client.list_runs(page_size=size)
    runs = client.list_runs(budget="mimic", page_size=3)
    assert isinstance(runs, ItemIterator)
    assert pages.requests == []
    assert [next(runs).name for _ in range(3)] == ["0", "1", "2"]
    [request] = pages.requests
    assert dict(request.url.params) == {"budget": "mimic", "sort": "-created_at", "limit": "3"}
    assert (next(runs).name, len(pages.requests), pages.requests[1].url.params["after"]) == ("3", 2, "3")
    assert [run.name for run in runs] == ["4", "5", "6"]
    assert list(runs) == []
    assert len(pages.requests) == 3


def test_awaited_list_does_alike() -> None:
    async def main() -> None:
        pages = Pages()
        pages.fails(Fault.NONE, Fault.LOST)
        async with AsyncLedgerClient(URL, KEY, max_attempts=1, transport=pages) as client:
            runs = client.list_runs(page_size=3)
            assert isinstance(runs, AsyncItemIterator)
            assert repr(runs) == "<AsyncItemIterator v1/runs {'sort': '-created_at'}>"
            seen = [(await anext(runs)).name for _ in range(3)]
            with pytest.raises(LedgerUnavailableError):
                await anext(runs)
            assert seen + [run.name async for run in runs] == [str(number) for number in range(7)]
            with pytest.raises(StopAsyncIteration):
                await anext(runs)
            assert len(pages.requests) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [[], {"items": None}, {"items": [5], "next": None}, {"items": [{}], "next": None}, {"items": [], "next": 3}],
)
def test_answer_that_is_no_page_is_refused(client: LedgerClient, ledger: FakeLedger, answer: object) -> None:
    ledger.answers(httpx2.Response(200, json=answer))
    with pytest.raises(UnexpectedResponseError):
        next(client.list_runs())
