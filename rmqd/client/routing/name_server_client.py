"""Requests to name servers. The addresses are from the configuration, host name resolution, or an address server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from rmqd.client.api.admin_requests import cluster_info
from rmqd.client.api.remoting_request import SharedCalls, request
from rmqd.client.client_options import without_password
from rmqd.client.remoting.frame_reader import parse_body
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import ResponseCode
from rmqd.errors import CircuitOpenError, NameServerError, RmqdError
from rmqd.errors.broker_errors import BrokerError
from rmqd.runtime.clock import Clock, wait_within
from rmqd.runtime.own_threads import call_in_thread
from rmqd.wire.bodies.route_data import TopicRouteData, light_queue_route
from rmqd.wire.headers.topic_headers import GetRouteInfoRequestHeader
from rmqd.wire.messages.message_id import host_port
from rmqd.wire.topics import is_light_queue

if TYPE_CHECKING:
    from urllib.request import Request


async def get_route(remoting: RemotingClient, address: str, topic: str) -> TopicRouteData:
    """Return a topic's route from one name server. Raises TopicNotExistError if this server has no such route."""
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    reply = await request(remoting, address, header)
    return await parse_body(TopicRouteData.from_json, reply.body)


LOOKUP_TIMEOUT_SECONDS: Final = 3.0  # Java: TopAddressing's readTimeoutMillis
MAX_ADDRESS_LIST_BYTES: Final = 64 * 1024


async def fetch_text(url: str) -> str:
    """Return the text at an HTTP URL. Raises OSError or ValueError. A cancellation closes the connections."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("an address server's URL must begin with http:// or https://")
    sockets: list[socket.socket] = []
    try:
        return await call_in_thread(partial(_read, url, sockets))
    finally:
        # end a slow download: its timeout is for each read, so a server that sends single bytes could block for days
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _read(url: str, sockets: list[socket.socket]) -> str:
    import http.client  # imported here, because it takes 7 ms and only address servers need it
    import urllib.error
    import urllib.request

    def noting(kind: type[http.client.HTTPConnection]) -> Any:
        def make(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = kind(host, **options)
            connect = connection.connect

            def connect_and_note() -> None:
                connect()
                sockets.append(connection.sock)

            connection.connect = connect_and_note  # type: ignore[method-assign]
            return connection

        return make

    class Http(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(noting(http.client.HTTPConnection), request)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(noting(http.client.HTTPSConnection), request)

    try:
        with urllib.request.build_opener(Http, Https).open(_request(url), timeout=LOOKUP_TIMEOUT_SECONDS) as reply:
            body: bytes = reply.read(MAX_ADDRESS_LIST_BYTES)
    except urllib.error.HTTPError as error:
        error.close()  # an HTTPError is also the response, with its connection
        raise
    except http.client.HTTPException as error:
        raise OSError(f"the address server's response is not HTTP: {error!r}") from error
    return body.decode()


def _request(url: str) -> Request:
    """Return a request with the URL's user and password as basic authentication, which redirects do not get."""
    from urllib.parse import unquote, urlsplit
    from urllib.request import Request

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=host).geturl())
    if at:
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(user).encode()).decode()}")
    return request


T = TypeVar("T")


async def first_answer(
    addresses: Sequence[str], question: Callable[[str], Awaitable[T]], clock: Clock, *, patience_seconds: float
) -> tuple[str, T]:
    """Ask the first address. If it fails, or does not answer for `patience_seconds`, ask all other addresses at once.

    Returns the first answer and its address, and cancels the other questions. An RmqdError counts as a failure of its
    address. If all addresses fail, raises an ExceptionGroup of their errors, in the order of the failures. Any other
    exception is raised at once.
    """
    first, others = addresses[0], list(addresses[1:])
    if not others:  # without a task, because the routes of hundreds of topics are requested at once
        try:
            return first, await question(first)
        except RmqdError as error:
            raise ExceptionGroup("no address answered", [error]) from None
    asked = {_ask(first, question): first}
    waiting: set[asyncio.Task[T]] = set(asked)
    errors: list[RmqdError] = []
    try:
        while waiting:
            patience = patience_seconds if others else None
            done, waiting = await clock.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    return asked[task], task.result()
                except RmqdError as error:
                    errors.append(error)
            started = {_ask(address, question): address for address in others}
            others.clear()
            asked |= started
            waiting |= set(started)
        raise ExceptionGroup("no address answered", errors)
    finally:
        for task in asked:
            task.cancel()
        # this wait takes one or two turns of the event loop, because a cancelled request only drops its future
        await asyncio.gather(*asked, return_exceptions=True)


def _ask(address: str, question: Callable[[str], Awaitable[T]]) -> asyncio.Task[T]:
    async def asking() -> T:
        return await question(address)

    return asyncio.create_task(asking(), name=f"ask:{address}")


log = structlog.get_logger(__name__)


ADDRESS_SERVER_INTERVAL_SECONDS = 120.0  # Java: fetchNameServerAddr
RESOLVE_INTERVAL_SECONDS = 30.0
PATIENCE_SECONDS = 0.5  # a working name server answers from memory, within one or two milliseconds
LOOKUP_GAP_SECONDS = 1.0  # shortest interval between lookups of the addresses

Resolve = Callable[[str, int], Awaitable[list[str]]]
Fetch = Callable[[str], Awaitable[str]]


class NameServers:
    """The name servers of one cluster. One of them is in use until it fails.

    `addresses` ("host:port") take precedence over `url`, an address server that returns a list of addresses. Host names
    are resolved to all their machines, and again every 30 s. So each machine is tried separately, and a removed machine
    is not asked any more. The constructor sends nothing. `run` keeps the addresses up to date; without it, `ask` does.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        addresses: Sequence[str],
        *,
        url: str = "",
        unit_name: str = "",
        resolve: Resolve | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self._remoting = remoting
        self._clock = remoting.clock
        self._configured = tuple(addresses)
        # Java: TopAddressing.fetchNSAddr
        self._url = "" if addresses else f"{url}-{unit_name}?nofix=1" if url and unit_name else url
        self._shown_url = without_password(self._url)
        self._resolve = resolve or resolve_host
        self._fetch = fetch or fetch_text
        self._addresses: list[str] = []  # resolved addresses; the first is in use
        self._resolved: dict[str, list[str]] = {}
        self._interval = ADDRESS_SERVER_INTERVAL_SECONDS if self._url else RESOLVE_INTERVAL_SECONDS
        self._stale_at = 0.0  # after this time (monotonic), `ask` must first look up the addresses
        self._look_again = asyncio.Event()
        self._looking = SharedCalls[None, None](lambda _: self._look_up())

    @property
    def addresses(self) -> tuple[str, ...]:
        """The resolved addresses. The first is in use; the others are asked if it fails."""
        return tuple(self._addresses)

    async def ask(self, question: Callable[[str], Awaitable[T]]) -> T:
        """Return a name server's answer to `question(address)`. Raises NameServerError if no name server answers.

        The name server in use is asked first. If it fails or is slow, all others are asked at once, and the first
        answer counts. An error response such as "no such topic" is an answer too, and is raised as BrokerError.
        """
        if not self._addresses or self._clock.monotonic() >= self._stale_at:
            await self.look_up()

        async def asking(address: str) -> T | BrokerError:
            try:
                return await question(address)
            except BrokerError as error:
                if error.retriable or error.code == ResponseCode.SYSTEM_ERROR:
                    raise  # counts as a failure, because this name server is not ready: other name servers are asked
                return error

        if not self._addresses:
            raise NameServerError(self._shown_url, f"no name server is known: {self._origin()}")
        try:
            known, patience = self._addresses, PATIENCE_SECONDS
            address, answer = await first_answer(known, asking, self._clock, patience_seconds=patience)
        except ExceptionGroup as group:
            self._look_again.set()
            raise self._nobody_answered(group.exceptions) from None
        self._prefer(address)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    async def look_up(self) -> None:
        """Read the address server's list and resolve host names now. After a failure, the last known addresses stay."""
        await self._looking(None)

    async def run(self) -> None:
        """Look up the addresses at intervals, and whenever no name server has answered. Runs until cancelled."""
        while True:
            self._stale_at = float("inf")  # while this loop runs, `ask` need not wait for a lookup
            await wait_within(self._clock, self._interval, self._look_again.wait())
            self._look_again.clear()
            await self.look_up()
            await self._clock.sleep(LOOKUP_GAP_SECONDS)

    async def _look_up(self) -> None:
        self._stale_at = max(self._stale_at, self._clock.monotonic() + self._interval)
        if self._url:
            await self._read_address_server()
        resolved = await asyncio.gather(*(self._resolve_address(address) for address in self._configured))
        self._resolved = dict(zip(self._configured, resolved, strict=True))
        self._replace(list(dict.fromkeys(address for addresses in resolved for address in addresses)))

    async def _read_address_server(self) -> None:
        try:
            async with self._clock.timeout(2 * LOOKUP_TIMEOUT_SECONDS):
                text = await self._fetch(self._url)
        except (OSError, ValueError) as error:  # OSError includes TimeoutError
            log.warning("name_server.lookup_failed", url=self._shown_url, error=str(error) or type(error).__name__)
            return
        listed = parse_addresses(text)
        if not listed:
            log.warning("name_server.lookup_failed", url=self._shown_url, error="the address server lists no address")
            return
        self._configured = listed

    async def _resolve_address(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if _is_number(host):
            return [address]
        try:
            async with self._clock.timeout(LOOKUP_TIMEOUT_SECONDS):
                addresses = [host_port(found, port) for found in await self._resolve(host, int(port))]
            for one in addresses:
                self._remoting.connector.set_server_name(one, host)
            return addresses
        except (OSError, ValueError) as error:
            known = self._resolved.get(address)
            log.warning("name_server.unresolved", address=address, error=str(error) or type(error).__name__)
            # if no address was ever known, keep the name: connecting to it fails with an error that shows the problem
            return known or [address]

    def _replace(self, addresses: list[str]) -> None:
        gone = [address for address in self._addresses if address not in addresses]
        new = [address for address in addresses if address not in self._addresses]
        random.shuffle(new)  # as in Java, so that clients do not all use the same name server
        if gone or (new and self._addresses):
            log.info("name_server.changed", added=new, removed=gone)
        self._addresses = [address for address in self._addresses if address not in gone] + new
        for address in gone:
            self._remoting.disconnect(address, "this address is no longer a name server")

    def _prefer(self, address: str) -> None:
        if address in self._addresses and self._addresses[0] != address:
            log.info("name_server.chosen", address=address, instead_of=self._addresses[0])
            self._addresses.remove(address)
            self._addresses.insert(0, address)

    async def get_route(self, topic: str) -> TopicRouteData:
        """Return a topic's route. Raises TopicNotExistError, NameServerError.

        A light message queue is routed to all brokers of the cluster, because name servers have no route for it.
        """
        if is_light_queue(topic):
            return light_queue_route(await self.ask(lambda address: cluster_info(self._remoting, address)))
        return await self.ask(lambda address: get_route(self._remoting, address, topic))

    def _nobody_answered(self, errors: Iterable[BaseException]) -> NameServerError:
        errors = list(errors)
        reasons = "; ".join(dict.fromkeys(str(error) for error in errors))
        reported = all(
            isinstance(e, RmqdError) and e.is_reported and not isinstance(e, CircuitOpenError) for e in errors
        )
        return NameServerError(";".join(self._addresses), f"no name server answered: {reasons}", is_reported=reported)

    def _origin(self) -> str:
        return f"the address server {self._shown_url} has listed none" if self._url else "none is configured"


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in an address server's response, which separates them by `;`, commas or white space."""
    return tuple(dict.fromkeys(text.replace(";", " ").replace(",", " ").split()))


async def resolve_host(host: str, port: int) -> list[str]:
    """Return all IP addresses of a host name. Raises OSError if it cannot be resolved."""
    found = await call_in_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
