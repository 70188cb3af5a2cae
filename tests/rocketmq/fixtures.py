"""pytest fixtures for RocketMQ: one cluster for each run, and fresh names for each test.

RMQD_TEST_ROCKETMQ names the RocketMQ to use. If it is not set, tests use a real 5.5.0 if tests of tests/nightly are
requested, otherwise the embedded one. tests/smoke always uses a real one.

A test that uses a real one is marked `rocketmq`. Without Java, Maven or access to the jars it is skipped, and the
summary reports that. If CI is set it fails, because a green run there must mean that everything ran. If the embedded
RocketMQ is requested, this also applies to tests whose counterpart is a Java program.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.left_out import left_out
from tests.rocketmq import programs, release
from tests.rocketmq.archives import prepare
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import NotEmbeddedError, RocketMqUnavailable
from tests.rocketmq.fetch import fetch
from tests.rocketmq.spec import ClusterSpec

STARTED_BY = {  # the fixtures that tests use, and the fixtures that start their clusters
    "rocketmq": "rocketmq",
    "rocketmq_faulty": "_faulty_cluster",
    "rocketmq_of_kinds": "rocketmq_proxied",
    "rocketmq_pair": "rocketmq_pair",
    "rocketmq_proxied": "rocketmq_proxied",
    "rocketmq_replicated": "_replicated_cluster",
    "rocketmq_secured": "rocketmq_secured",
    "rocketmq_short_delays": "rocketmq_short_delays",
    "rocketmq_static": "rocketmq_pair",
}
NIGHTLY = Path(__file__).parents[1] / "nightly"
DELAY_LEVELS = 18
SHORT_DELAYS = {"messageDelayLevel": " ".join(["1s"] * DELAY_LEVELS)}
OF_KINDS = {**SHORT_DELAYS, "enableLmq": "true", "enableMultiDispatch": "true"}
UNAVAILABLE = pytest.StashKey[str]()
LEFT_OUT = "no real RocketMQ"  # a property of the report, which workers of pytest-xdist send too
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the RocketMQ of the tests, in case RMQD_TEST_ROCKETMQ is not set."""
    asked_for = [Path(argument.split("::")[0]).absolute() for argument in config.args]
    release.be_daily(not any(path.is_relative_to(NIGHTLY) for path in asked_for))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a cluster, except tests with another fixture of the same name."""
    mark = pytest.mark.process if release.wanted() == release.EMBEDDED else pytest.mark.rocketmq
    for item in items:
        if clusters_used(item):
            item.add_marker(mark)
        if item.get_closest_marker("rocketmq"):  # one worker of pytest-xdist runs them all, with one cluster
            item.add_marker(pytest.mark.xdist_group("real"))


def clusters_used(item: pytest.Item) -> list[str]:
    """The cluster fixtures that the test uses, directly or through other fixtures."""
    return [name for name in STARTED_BY if isinstance(item, pytest.Function) and _is_ours(item, name)]


def _is_ours(item: pytest.Function, name: str) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs.get(name)
    return fixtures is not None and fixtures[-1].func.__module__ == __name__


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch RocketMQ before the first test, because no test's timeout runs yet."""
    if session.config.option.collectonly or not any(item.get_closest_marker("rocketmq") for item in session.items):
        return
    try:
        prepare()
        fetch()  # the peers are programs of the default release, with any cluster
        programs.compiled()
    except RocketMqUnavailable as error:
        session.config.stash[UNAVAILABLE] = str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need a RocketMQ if it is unavailable."""
    reason = item.config.stash.get(UNAVAILABLE, None)
    if reason is not None and item.get_closest_marker("rocketmq"):
        item.user_properties.append((LEFT_OUT, reason))
        _leave_out(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that turns out to need Java, or a cluster that the embedded RocketMQ does not support."""
    try:
        yield
    except RocketMqUnavailable as error:
        _leave_out(str(error))
    except NotEmbeddedError as error:
        pytest.skip(str(error))


def _leave_out(reason: str) -> None:
    """Skip the test, or fail it in CI."""
    line = reason.splitlines()[0]  # the summary has the rest
    if os.environ.get("CI"):
        pytest.fail(f"no real RocketMQ, and CI is set: {line}", pytrace=False)
    pytest.skip(f"no real RocketMQ: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the skipped tests."""
    for reason in left_out(terminalreporter, LEFT_OUT):
        terminalreporter.section("NOT TESTED AGAINST A REAL ROCKETMQ", red=True, bold=True)
        terminalreporter.line(reason)


@pytest.fixture(scope="session")
def rocketmq() -> Iterator[RealCluster]:
    """A name server and a broker for the whole run. Only for tests that do not change their state."""
    with RealCluster.start() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _faulty_cluster() -> Iterator[RealCluster]:
    with RealCluster.start(ClusterSpec(heap="384m")) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_faulty(_faulty_cluster: RealCluster) -> Iterator[RealCluster]:
    """Another cluster, whose nodes may be killed, paused and restarted. It is repaired after each test."""
    yield _faulty_cluster
    mend(_faulty_cluster)


@pytest.fixture(scope="session")
def _replicated_cluster() -> Iterator[RealCluster]:
    if release.is_4():
        pytest.skip("a slave of RocketMQ 4 asks for its master's new topics only once a minute")
    try:
        cluster = RealCluster.start(ClusterSpec(slaves=True, heap="384m", settings={"slaveReadEnable": "true"}))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture
def rocketmq_replicated(_replicated_cluster: RealCluster) -> Iterator[RealCluster]:
    """A master with a slave that may be read from; both may be killed, paused and restarted."""
    yield _replicated_cluster
    mend(_replicated_cluster)


def mend(cluster: RealCluster) -> None:
    """Resume and start all nodes."""
    for node in cluster.nodes:
        if node.state == "paused":
            cluster.resume(node.name)
    cluster.up()


@pytest.fixture(scope="session")
def rocketmq_short_delays() -> Iterator[RealCluster]:
    """A third cluster, whose 18 delay levels are all one second. A message's DELAY property still shows its level."""
    with RealCluster.start(ClusterSpec(heap="384m", settings=SHORT_DELAYS)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_pair() -> Iterator[RealCluster]:
    """A cluster of two brokers, whose delay levels are all one second. Static topics move between them."""
    try:
        cluster = RealCluster.start(ClusterSpec(brokers=2, heap="384m", settings=SHORT_DELAYS))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_static(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """The same cluster for tests that do not move static topics, because the embedded RocketMQ has one broker."""
    if release.is_4():
        pytest.skip("RocketMQ 4.9 has no static topics")
    yield from _lone_if_embedded(request, SHORT_DELAYS)


@pytest.fixture(scope="session")
def rocketmq_proxied() -> Iterator[RealCluster]:
    """A cluster with a proxy in front of its broker, and the settings that special topics need since RocketMQ 5.5."""
    try:
        cluster = RealCluster.start(ClusterSpec(proxy=True, heap="384m", settings=OF_KINDS))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_of_kinds(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """The same cluster for tests that need no proxy, because the embedded RocketMQ has lite topics too."""
    yield from _lone_if_embedded(request, OF_KINDS)


def _lone_if_embedded(request: pytest.FixtureRequest, settings: dict[str, str]) -> Iterator[RealCluster]:
    """Another fixture's cluster, or one embedded broker with these settings if the embedded RocketMQ is tested."""
    if release.wanted() != release.EMBEDDED:
        yield request.getfixturevalue(STARTED_BY[request.fixturename or ""])
        return
    with RealCluster.start(ClusterSpec(settings=settings)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_secured() -> Iterator[RealCluster]:
    """A cluster with access control, which accepts only TLS with a client certificate of tests/certificates."""
    try:
        cluster = RealCluster.start(ClusterSpec(acl=True, certificates=True, heap="384m"))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A fresh name of a consumer group."""
    return fresh_name(request.node.name, "group")


@pytest.fixture
def topic(request: pytest.FixtureRequest, rocketmq: RealCluster) -> str:
    """A fresh topic with 8 queues on `rocketmq`."""
    return rocketmq.create_topic(fresh_name(request.node.name, "topic"))


def fresh_name(test: str, kind: str) -> str:
    """A fresh name for a topic or group. It contains the test's name, and is short enough for mqadmin's columns."""
    clean = re.sub(r"[^A-Za-z0-9]+", "_", test.removeprefix("test_"))[:30].strip("_")
    return f"{clean}_{kind}_{time.time_ns() // 1_000_000 % 10**9}_{os.getpid()}_{next(_numbers)}"
