"""`rmqd broker`: the embedded RocketMQ as a program."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.client.client_id import local_address
from tests.cli.command import TOP, Ended, rmqd

pytestmark = pytest.mark.process


@contextlib.contextmanager
def running(*arguments: str | Path, listen: str = "127.0.0.1:0") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker that runs, and the address that it printed first; killed at the end if it still runs."""
    command = [sys.executable, "-m", "rmqd", "broker", "--listen", listen, *map(str, arguments)]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("nameserver: "), process.stderr and process.stderr.read()
            yield process, first.removeprefix("nameserver: ").rstrip("\n")
        finally:
            process.kill()


def send(nameserver: str, topic: str, body: str = "hello") -> Ended:
    return rmqd("send", topic, body, "--nameserver", nameserver)


def test_the_first_line_is_the_address_and_the_next_ones_help() -> None:
    with running("--topic", "shop:2") as (process, nameserver):
        assert process.stdout is not None
        broker, hint = process.stdout.readline(), process.stdout.readline()

        assert re.fullmatch(r"127\.0\.0\.1:\d+", nameserver)
        assert re.match(r"broker: broker-a at 127\.0\.0\.1:\d+; messages are kept in memory", broker)
        command = hint.removeprefix("try: rmqd ").replace("'", "").split()
        ended = rmqd(*command)
        assert ended.code == 0, ended.err
        assert "  shop  broker-a  queue " in ended.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order_and_it_has_logged_nothing(number: signal.Signals) -> None:
    with running() as (process, nameserver):
        assert send(nameserver, "made_by_sending").code == 0
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)

        assert (process.returncode, errors) == (0, "")


def test_topics_have_the_queues_that_were_asked_for() -> None:
    with running("--topic", "one:1", "--topic", "four") as (_, nameserver):
        for topic, queues in (("one", {"0"}), ("four", {"0", "1", "2", "3"})):
            ended = rmqd("send", topic, "x", "--count", "8", "--nameserver", nameserver)

            assert set(re.findall(r"queue (\d+)", ended.out)) == queues


def test_what_was_stored_in_a_data_dir_is_there_after_kill_9(tmp_path: Path) -> None:
    """The folder is made, and the topics that it has stay as they are."""
    folder = tmp_path / "to" / "be" / "made"
    with running("--data-dir", folder, "--topic", "shop:1") as (process, nameserver):
        assert "  queue 0  offset 0" in send(nameserver, "shop").out
        process.kill()
        process.wait()
    with running("--data-dir", folder, "--topic", "shop:7") as (_, nameserver):
        for offset in (1, 2):
            assert f"  queue 0  offset {offset}" in send(nameserver, "shop").out


def test_a_setting_holds() -> None:
    with running("--setting", "autoCreateTopicEnable=false", "--setting", "brokerName=mine", "--topic", "shop:1") as (
        _,
        nameserver,
    ):
        assert "  mine  " in send(nameserver, "shop").out
        assert "does not exist" in send(nameserver, "other").err


@pytest.mark.parametrize(
    ("listen", "host"), [("0.0.0.0:0", local_address()), ("localhost:0", "127.0.0.1"), ("[::1]:0", "[::1]")]
)
def test_clients_are_told_an_address_that_they_can_connect_to(listen: str, host: str) -> None:
    if "::1" in listen and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with running(listen=listen) as (process, nameserver):
        assert nameserver.rpartition(":")[0] == host
        assert process.stdout is not None
        assert f" at {host}:" in process.stdout.readline()
        assert send(nameserver, "orders").code == 0


def test_an_address_for_everybody_is_warned_of() -> None:
    with running(listen="0.0.0.0:0") as (process, nameserver):
        assert send(nameserver, "orders").code == 0
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)

    assert "rmqd broker: warning: everybody who reaches this address may" in errors


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_the_address_that_clients_are_told_may_be_another_one() -> None:
    """As where a container's ports are published: the broker's port is then fixed."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    arguments = ("--broker-port", str(port), "--setting", "brokerIP1=127.0.0.1")
    with running(*arguments, listen="0.0.0.0:0") as (process, nameserver):
        assert process.stdout is not None
        assert f" at 127.0.0.1:{port};" in process.stdout.readline()
        assert send(nameserver, "orders").code == 0


def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        ended = rmqd("broker", "--listen", address)

    told = f"rmqd broker: the name server cannot listen at {address}: address already in use\n"
    assert (ended.code, ended.out, ended.err) == (1, "", told)


def test_a_folder_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = rmqd("broker", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "file")

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"rmqd broker: the data dir {tmp_path / 'file'} cannot be used: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--listen", "9876"), "'9876' is no HOST:PORT, such as 127.0.0.1:9876"),
        (("--listen", "127.0.0.1:65536"), "is no HOST:PORT"),
        (("--topic", "shop:0"), "'shop:0' is no name:queues, such as orders:4, with up to 1024 queues"),
        (("--topic", "shop:"), "'shop:' is no name:queues"),
        (("--topic", "a shop:4"), "contains a character that RocketMQ refuses"),
        (("--setting", "brokerName"), "'brokerName' is no name=value"),
        (("--setting", "brokerNane=x"), "no setting 'brokerNane'; accepted: brokerClusterName, "),
        (("--setting", "maxMessageSize=big"), "maxMessageSize='big': it must be an integer"),
        (("--broker-port", "70000"), "--broker-port"),
    ],
)
def test_wrong_values_are_refused_with_what_is_accepted(arguments: tuple[str, ...], told: str) -> None:
    ended = rmqd("broker", *arguments)

    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_an_unknown_host_is_said_in_one_line() -> None:
    ended = rmqd("broker", "--listen", "no.such.host.invalid:0")

    assert (ended.code, ended.out) == (1, "")
    assert re.fullmatch(r"rmqd broker: .+\n", ended.err)
