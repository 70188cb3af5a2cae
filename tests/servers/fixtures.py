"""pytest fixtures for servers. Each server is one process for the whole run, shared by the tests.

All tests of one server are one group of pytest-xdist, so that `--dist loadgroup` runs them on one worker. A test that
uses a server has the marker `process`. If the server is not installed, the test is skipped, and the summary reports it.
If CI is set, the test fails instead, because a green run in CI must mean that all tests ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pytest

from tests.left_out import left_out
from tests.servers.kafka import KafkaServer
from tests.servers.mariadb import MariadbServer
from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import ServerMissing, ServerProcess
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server
from tests.servers.shops import DAILY_DIALECTS, Shop, on_mariadb, on_postgresql, sqlite

S = TypeVar("S", bound=ServerProcess)
SERVERS: Final = {  # session fixtures and the kind of server that each of them starts
    "_postgresql": "postgresql",
    "_redis": "redis",
    "_kafka": "kafka",
    "_mariadb": "mariadb",
    "s3_server": "s3",
}
REAL: Final = "real"  # the group of tests on a real RocketMQ or on Spark
LEFT_OUT = "no server"  # a property of the report, which pytest-xdist's workers send too


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of each kind of server into one group. A test that uses two kinds joins their groups."""
    kinds_used = {item: kinds for item in items if (kinds := _kinds_used(item))}
    groups: list[set[str]] = []
    for item, kinds in kinds_used.items():
        joined = kinds | {REAL} if _is_real(item) else kinds
        joined = joined.union(*(group for group in groups if group & joined))
        groups = [group for group in groups if not group & joined] + [joined]
    names = {kind: REAL if REAL in group else "+".join(sorted(group)) for group in groups for kind in group}
    for item, kinds in kinds_used.items():
        if not _is_real(item):
            item.add_marker(pytest.mark.xdist_group(names[min(kinds)]))


def _is_real(item: pytest.Item) -> bool:
    return any(marker.args == (REAL,) for marker in item.iter_markers("xdist_group"))


def _kinds_used(item: pytest.Item) -> set[str]:
    """The servers that a test uses: by fixtures, or by a parameter that names the server."""
    used = {SERVERS[name] for name in getattr(item, "fixturenames", ()) if name in SERVERS}
    if item.get_closest_marker("process") and (call := getattr(item, "callspec", None)):
        used.update(kind for kind in SERVERS.values() if kind in call.params.values())
    return used


@pytest.fixture(scope="session")
def _postgresql() -> Iterator[PostgresqlServer | str]:
    yield from _started(PostgresqlServer)


@pytest.fixture
def postgresql(_postgresql: PostgresqlServer | str, request: pytest.FixtureRequest) -> PostgresqlServer:
    """A PostgreSQL for the whole run. A test may kill it, and starts it again."""
    _check_group(request, "postgresql")
    if isinstance(_postgresql, str):
        leave_out(_postgresql, request)
    return _postgresql


@pytest.fixture
def database(postgresql: PostgresqlServer) -> str:
    """The URL of an empty database for this test."""
    return postgresql.database()


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer | str]:
    yield from _started(RedisServer)


@pytest.fixture
def redis_server(_redis: RedisServer | str, request: pytest.FixtureRequest) -> RedisServer:
    """A Redis for the whole run, empty. A test may kill it, and starts it again."""
    _check_group(request, "redis")
    if isinstance(_redis, str):
        leave_out(_redis, request)
    with _redis.client() as client:
        client.flushall()
    return _redis


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[Any]:
    """A connection to that Redis for this test."""
    with redis_server.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def _kafka() -> Iterator[KafkaServer | str]:
    yield from _started(KafkaServer)


@pytest.fixture
def kafka_server(_kafka: KafkaServer | str, request: pytest.FixtureRequest) -> KafkaServer:
    """A Kafka for the whole run; each test creates its topics. A test may kill it, and starts it again."""
    _check_group(request, "kafka")
    if isinstance(_kafka, str):
        leave_out(_kafka, request)
    return _kafka


@pytest.fixture(scope="session")
def _mariadb() -> Iterator[MariadbServer | str]:
    yield from _started(MariadbServer)


@pytest.fixture
def mariadb(_mariadb: MariadbServer | str, request: pytest.FixtureRequest) -> MariadbServer:
    """A MariaDB for the whole run. A test may kill it, and starts it again."""
    _check_group(request, "mariadb")
    if isinstance(_mariadb, str):
        leave_out(_mariadb, request)
    return _mariadb


@pytest.fixture(params=DAILY_DIALECTS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A database of each daily dialect, or of the dialects that the test names by `parametrize(..., indirect=True)`."""
    if request.param == "sqlite":
        return sqlite(tmp_path)
    server = request.getfixturevalue(request.param)
    make: Callable[[Any], Shop] = on_postgresql if request.param == "postgresql" else on_mariadb
    return make(server)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 for the whole run; each test has its own folders. A test may kill it, and starts it again."""
    with S3Server() as server:
        yield server


def _started(kind: Callable[[], S]) -> Iterator[S | str]:
    """A server until the end of the run, or the reason why it is missing."""
    try:
        server = kind()
    except ServerMissing as error:
        yield str(error)
        return
    with server:
        yield server


def _check_group(request: pytest.FixtureRequest, kind: str) -> None:
    """Without a group, a test would start a second server on another worker."""
    assert request.node.get_closest_marker("xdist_group"), f"mark the test with xdist_group({kind!r})"


def leave_out(reason: str, request: pytest.FixtureRequest) -> NoReturn:
    """Skip the test and report it in the summary, or fail in CI."""
    request.node.user_properties.append((LEFT_OUT, reason))
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and there is {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report why tests were skipped."""
    for reason in left_out(terminalreporter, LEFT_OUT):
        terminalreporter.section("NOT TESTED AGAINST A SERVER", red=True, bold=True)
        terminalreporter.line(reason)
