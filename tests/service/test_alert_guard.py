"""Where receivers may lead: no name, number or spelling leads to an address that is not public."""

import asyncio

import pytest

from app.ledger.errors import InvalidInputError
from app.service.alerts.ssrf_guard import check_url, is_public
from app.service.egress.connection import EgressError, connect, resolve
from tests.each import for_each
from tests.service.endpoint import receiving

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255"),
    *("11.0.0.0", "9.255.255.255", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "223.255.255.255"),
    *("2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
]
FORBIDDEN = [
    *("127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1"),  # noqa: S104
    *("172.31.255.255", "192.168.0.1", "192.168.255.255", "169.254.169.254", "169.254.0.1", "100.64.0.1"),
    *("100.127.255.255", "100.100.100.200", "192.0.0.1", "192.0.0.192", "192.0.2.1", "198.51.100.1", "203.0.113.1"),
    *("198.18.0.1", "198.19.255.255", "192.88.99.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:7f00:1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1.1.1.1", "2002:7f00:1::1"),
    *("2002:a00:1::", "2002:a9fe:a9fe::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1"),
    *("fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "100::1"),
    *("4000::1", "5f00::1", "e000::1", "", "localhost", "127.1", "0x7f000001", "2130706433"),
]
REFUSED_URLS = {
    "https://": [
        *("http://alerts.example/", "ftp://alerts.example/", "file:///etc/passwd", "gopher://alerts.example/"),
        *("alerts.example", "//alerts.example"),
    ],
    "names a host": ["https://", "https:///path", "https://:443/"],
    "no password": ["https://user:secret@alerts.example/", "https://user@alerts.example/", "https://@alerts.example/"],
    "no fragment": ["https://alerts.example/#here"],
    "port": ["https://alerts.example:0/"],
    "cannot be read": ["https://alerts.example:99999/", "https://alerts.example:x/", "https://[::1/"],
    "ASCII": ["https://alerts example/", "https://alerts.example/\n", "https://bücher.example/"],
    "2000": ["https://" + "a" * 2000],
    "no public address": [
        *("https://127.0.0.1/", "https://169.254.169.254/latest/meta-data", "https://[::1]/"),
        *("https://[::ffff:10.0.0.1]/", "https://[fe80::1%25eth0]/"),
    ],
}


def test_only_addresses_of_the_internet_are_public() -> None:
    assert [address for address in PUBLIC if not is_public(address)] == []
    assert [address for address in FORBIDDEN if is_public(address)] == []


def connected(answers: list[list[str]], port: int, *, allowed: bool = False) -> list[str]:
    """Connect as often as the resolver has an answer; what became of it, each time."""
    left = iter(answers)

    async def rebinding(*_: object) -> list[str]:
        return next(left)

    async def main() -> list[str]:
        permitted, found = None if allowed else is_public, []
        for _ in answers:
            try:
                opened = await connect("rebind.example", port, 1000, permitted=permitted, resolver=rebinding)
            except EgressError as error:
                found.append(type(error).__name__)
            else:
                found.append(opened._socket.getpeername()[0])
                opened.close()
        return found

    return asyncio.run(main())


def test_connection_goes_to_the_address_that_was_checked() -> None:
    with receiving() as endpoint:
        local = ["127.0.0.1"]
        assert connected([local, local], endpoint.server_port, allowed=True) == ["127.0.0.1", "127.0.0.1"]
        # The resolver's first answer would do, and its second is never asked for.
        for answer in (local, ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]):
            assert connected([answer], endpoint.server_port) == ["ForbiddenAddressError"]
        assert connected([["::1", "127.0.0.1"]], endpoint.server_port, allowed=True) == ["127.0.0.1"]
    assert endpoint.messages == []
    assert connected([[]], 80) == ["EgressError"]
    found = asyncio.run(resolve("localhost", 80))
    assert len(found) == len(set(found)) > 0


@for_each([(words, url) for words, urls in REFUSED_URLS.items() for url in urls])
def test_url_without_a_public_https_host_is_refused(case: tuple[str, str]) -> None:
    words, url = case
    with pytest.raises(InvalidInputError, match=words):
        check_url(url, allow_private=False)


def test_public_urls_are_accepted_and_others_where_an_operator_allows_them() -> None:
    for url in ("alerts.example", "alerts.example:8443/a?b=c", "1.1.1.1/", "[2606:4700:4700::1111]/"):
        check_url(f"https://{url}", allow_private=False)
    for url in ("HTTPS://a.example/", "https://xn--bcher-kva.example/"):
        check_url(url, allow_private=False)
    for url in ("http://127.0.0.1:8080/", "http://alerts.intranet/"):
        check_url(url, allow_private=True)
    with pytest.raises(InvalidInputError):
        check_url("ftp://alerts.intranet/", allow_private=True)
