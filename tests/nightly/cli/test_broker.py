"""`rmqd broker` in this process: signals, settings, advertised addresses and unusable arguments.

A test in tests/cli/test_broker.py starts the program.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqd.client.client_options import local_address
from rmqd.errors import RmqdError
from tests.cli.command import Ended
from tests.cli.in_process import rmqd
from tests.cli.test_broker import send
from tests.rocketmq.spec import free_port
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _garbage_is_collected_as_before() -> Iterator[None]:
    """`rmqd broker` changes the garbage collection of its process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.enable()


def while_it_runs(
    *arguments: str, do: Callable[[str], object], host: str = "127.0.0.1", end: signal.Signals = signal.SIGTERM
) -> Ended:
    """Run `rmqd broker`, call `do` with the name server's address, and end the broker by a signal."""
    port = free_port(set(), (0,))
    reachable = {"0.0.0.0": "127.0.0.1", "[::1]": "::1"}.get(host, host)
    is_over = threading.Event()
    errors: list[BaseException] = []

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((reachable, port), 1):
            return True
        return is_over.is_set()

    def work() -> None:
        try:
            wait_until(listens, "the broker listens")
            do(f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}")
        except BaseException as error:  # noqa: BLE001  it is raised in the test's thread
            errors.append(error)
        if not is_over.is_set():
            os.kill(os.getpid(), end)

    beside = threading.Thread(target=work)
    beside.start()
    try:
        ended = rmqd("broker", "--listen", f"{host}:{port}", *arguments)
    finally:
        is_over.set()
        beside.join()
    if errors:
        raise errors[0]
    return ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_broker_without_error_output(number: signal.Signals) -> None:
    ended = while_it_runs(do=lambda nameserver: send(nameserver, "made_by_sending"), end=number)

    assert (ended.code, ended.err) == (0, "")
    broker, hint = ended.out.splitlines()[1:]
    assert re.match(r"broker: broker-a at 127\.0\.0\.1:\d+; messages are kept in memory", broker)
    assert hint.startswith("try: rmqd send orders 'hello' --nameserver 127.0.0.1:")


def test_topics_and_settings_are_applied() -> None:
    def do(nameserver: str) -> None:
        for topic, queues in (("one", {0}), ("four", {0, 1, 2, 3})):
            results = send(nameserver, topic, 8)
            assert {(one.queue.broker_name, one.queue.queue_id) for one in results} == {("mine", n) for n in queues}
        with pytest.raises(RmqdError, match="does not exist"):
            send(nameserver, "other")

    settings = ("--setting", "autoCreateTopicEnable=false", "--setting", "brokerName=mine")
    assert while_it_runs("--topic", "one:1", "--topic", "four", *settings, do=do).code == 0


@pytest.mark.parametrize(
    ("listen", "host"), [("0.0.0.0", local_address()), ("localhost", "127.0.0.1"), ("[::1]", "[::1]")]
)
def test_the_broker_advertises_an_address_that_clients_can_connect_to(listen: str, host: str) -> None:
    """A broker that listens at every address prints a warning."""
    if "::1" in listen and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    ended = while_it_runs(do=lambda nameserver: send(nameserver, "orders"), host=listen)
    nameserver, broker, *_ = ended.out.splitlines()
    assert ended.code == 0
    assert nameserver.rpartition(":")[0] == f"nameserver: {host}"
    assert f" at {host}:" in broker
    warning = "rmqd broker: warning: anyone who can reach this address may"
    assert (warning in ended.err) is (listen == "0.0.0.0"), ended.err


def test_the_advertised_address_can_be_set() -> None:
    """Published ports of a container need this. The broker's port is then fixed."""
    port = free_port(set(), (0, -2))
    arguments = ("--broker-port", str(port), "--setting", "brokerIP1=127.0.0.1")
    ended = while_it_runs(*arguments, do=lambda nameserver: send(nameserver, "orders"), host="0.0.0.0")
    assert f" at 127.0.0.1:{port};" in ended.out


def test_an_unusable_address_or_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    """A port in use, a file instead of a folder, and an unknown host."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        ended = rmqd("broker", "--listen", address)
    told = f"rmqd broker: the name server cannot listen at {address}: address already in use\n"
    assert (ended.code, ended.out, ended.err) == (1, "", told)

    (tmp_path / "file").touch()
    ended = rmqd("broker", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "file")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"rmqd broker: the data dir {tmp_path / 'file'} cannot be used: ")

    ended = rmqd("broker", "--listen", "no.such.host.invalid:0")
    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(r"rmqd broker: .+\n", ended.err)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
