"""A cluster that requires TLS, client certificates and access keys: rmqd next to Java.

The cluster has RocketMQ's own access control, and the certificates of tests/certificates.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import CA, CLIENT_EXPIRED, OTHER_CA, certificate, key
from tests.cli.command import rmqd as command
from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess, ledger_group
from tests.nightly.integration.secured_world import NEXT_SECRET, WRONG_SECRET, World, secrets_in
from tests.nightly.rocketmq.users import update_user
from tests.rocketmq import RealCluster, offsets, release
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)  # a cluster with TLS starts slowly on a busy machine

if release.is_4():
    MISSING, UNKNOWN, WRONG = "No accessKey is configured", "No acl config for", "Check signature failed"
    EXPIRED = "the server does not accept the certificate in client.tls.cert_file"
else:
    EXPIRED = "the server does not accept the certificate in client.tls.cert_file, which has expired"
    MISSING, UNKNOWN, WRONG = "username cannot be null", "is not found", "check signature failed"


@pytest.fixture
def world(rocketmq_secured: RealCluster, request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A topic, a group and a user for one test."""
    return World(rocketmq_secured, request.node.name, tmp_path)


def test_valid_keys_work_next_to_a_java_member(world: World) -> None:
    """Consumption, retries, commands and a Java member work, and only handler failures are logged as errors."""
    world.send(0, 200)
    options = {"fail_every": 7}
    group = ledger_group(world.topic, world.ledger, "a", handler_options=options, consume_from_where="first_offset")
    with RmqdProcess(
        world.directory / "rmqd", world.cluster.nameserver, {world.group: group}, client=world.client()
    ) as rmqd:
        rmqd.wait_ready()
        wait_until(lambda: len(world.finished()) == 200, "all is handled, what failed once more", 40)
        check = command("check", "-c", rmqd.config_path, "--connect")
        lag = command("lag", world.group, "-c", rmqd.config_path, "-o", "json")
        assert (check.code, lag.code) == (0, 0), check.err + check.out + lag.err
        assert world.topic in {entry["topic"] for entry in lag.json()}
        java_ledger = world.directory / "java-ledger"
        peer = PeerOptions(world.cluster.nameserver, world.topic, java_ledger, secured=True)
        with start_consumer(peer, world.group, access_key=world.user, secret_key=world.secret) as java:
            # Java's client repeats messages of the queues that it acquires, because it does not wait for the commit
            wait_until(
                lambda: sum(not queue["is_retry"] for queue in rmqd.queues(world.group)) == 2,
                "Java has half of the queues",
                60,
            )
            world.send(200, 400)
            both = (world.ledger, java_ledger)
            wait_until(lambda: len(world.finished(*both)) == 400, "both handle what comes", 60)
            assert len(world.finished(java_ledger)) > 0
            assert set(world.finished(*both).values()) == {1}, "no message is repeated"
            assert java.stop() in (0, 143)
        assert [event for event in rmqd.events() if event["level"] == "error"] == handler_errors(rmqd)
        assert rmqd.terminate()[0] == 0
        wait_until(lambda: offsets.lag(world.cluster, world.group, world.topic) == 0, "all is committed")


def handler_errors(rmqd: RmqdProcess) -> list[dict[str, Any]]:
    """The failures that the handler's options ask for."""
    return rmqd.events("handler.failed")


def test_wrong_credentials_are_reported_and_replaced_without_a_restart(world: World) -> None:
    """Keys and certificates that are missing, wrong, foreign or expired, one after the other, under load."""
    tls = world.client()["tls"]
    expired = {"cert_file": str(certificate(CLIENT_EXPIRED)), "key_file": str(key(CLIENT_EXPIRED))}
    # Each of these calls also writes the secret to its file.
    wrong: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("the server accepts only TLS", lambda: world.client(tls={"enabled": False})),
        ("the server requires a client certificate", lambda: world.client(tls={"enabled": True, "ca_file": str(CA)})),
        (EXPIRED, lambda: world.client(tls={**tls, **expired})),
        ("no trusted authority signed the server", lambda: world.client(tls={**tls, "ca_file": str(OTHER_CA)})),
        ("is not for mq.example", lambda: world.client(tls={**tls, "server_name": "mq.example"})),
        (WRONG, lambda: world.client(secret=WRONG_SECRET)),
        (UNKNOWN, lambda: world.client(access_key="nobody-of-a-test")),
    ]
    group = {world.group: ledger_group(world.topic, world.ledger, "a", consume_from_where="first_offset")}
    nameserver = world.cluster.nameserver
    with RmqdProcess(world.directory / "rmqd", nameserver, group, client={"tls": tls}) as rmqd:
        pid = rmqd.pid
        with Load(world.cluster, world.topic, 100_000, per_second=50, queues=4) as load:
            wait_refused(rmqd, MISSING, 1)
            for number, (reason, client) in enumerate(wrong, 2):
                if number % 3 == 0:  # handles messages in between, so that the next keys have something to commit
                    reload_with(rmqd, nameserver, group, world.client())
                    rmqd.wait_ready()
                    handled = len(world.finished())
                    wait_until(partial(has_grown, world, handled + 20), "messages are handled")
                reload_with(rmqd, nameserver, group, client())
                wait_refused(rmqd, reason, number)
            reload_with(rmqd, nameserver, group, world.client())
            rmqd.wait_ready()

            if not release.is_4():
                change_user(rmqd, world)
        wait_until(lambda: set(world.finished()) >= set(load.sent), "all that was sent is handled", 40)
        assert rmqd.pid == pid
        shown = rmqd.everything_shown()
        assert rmqd.terminate()[0] == 0
        assert offsets.lag(world.cluster, world.group, world.topic) == 0
        assert {message: times for message, times in world.finished().items() if times > 1} == {}
        complaints = [event for event in rmqd.events() if event["level"] in ("warning", "error", "critical")]
        # RocketMQ 4 may close a connection without naming the certificate; its name server then counts as unreachable.
        # On a busy machine a handler waits for the disk, and a reload ends requests on the old connection.
        allowed = {
            "access.refused",
            "daemon.not_ready",
            "handler.blocked_loop",
            *(["name_server.unreachable"] if release.is_4() else []),
        }
        ended = "the TLS settings have changed"
        assert {event["event"] for event in complaints if not event.get("error", "").endswith(ended)} <= allowed
        assert secrets_in([*shown, *rmqd.written()], world) == []


def test_workers_log_a_refusal_once_and_show_no_secrets(world: World) -> None:
    """Secrets are neither in tracebacks nor in debug logs, in `ps` or in the output of commands."""
    world.send(0, 40)
    group = {
        world.group: ledger_group(
            world.topic, world.ledger, "a", handler_options={"fail_every": 7}, consume_from_where="first_offset"
        )
    }
    wrong, options = world.client(secret=WRONG_SECRET), ("--workers", "2", "--set", "log.level=debug")
    with RmqdProcess(world.directory / "rmqd", world.cluster.nameserver, group, *options, client=wrong) as rmqd:
        wait_refused(rmqd, WRONG, 1)
        wait_until(lambda: rmqd.get("/readyz")[1].decode().count(WRONG) == 2, "both workers are refused")
        assert len(rmqd.events("access.refused")) == 1
        shown = [*rmqd.everything_shown(), *told_by_commands(rmqd, world)]
        world.client()  # writes the valid secret
        rmqd.signal(signal.SIGHUP)
        rmqd.wait_ready()
        wait_until(lambda: len(world.finished()) == 40, "all is handled, what failed once more", 40)
        assert any("Traceback" in str(event.get("exception")) for event in rmqd.events())
        assert len([line for line in rmqd.command_lines() if " rmqd _worker " in line]) == 2
        shown += [*rmqd.everything_shown(), *told_by_commands(rmqd, world)]
        assert rmqd.terminate()[0] == 0
        assert secrets_in([*shown, *rmqd.written()], world) == []


def told_by_commands(rmqd: RmqdProcess, world: World) -> list[str]:
    """The output of commands that query the cluster or the daemon, with or without permission."""
    config = ("-c", str(rmqd.config_path))
    asked = [("check", "--connect"), ("lag", world.group), ("status",)]
    ended = [command(*words, *config) for words in asked]
    return [text for one in ended for text in (one.out, one.err)]


def change_user(rmqd: RmqdProcess, world: World) -> None:
    """Disable the user, enable it again and change its secret while rmqd runs."""
    update_user(world.cluster, world.user, userStatus="disable")
    wait_until(partial(is_unready, rmqd, "is disabled"), "/readyz reports that the user is disabled")
    update_user(world.cluster, world.user, userStatus="enable")
    rmqd.wait_ready()
    update_user(world.cluster, world.user, password=NEXT_SECRET)
    wait_until(partial(is_unready, rmqd, WRONG), "/readyz reports that the secret is wrong")
    world.client(secret=NEXT_SECRET)
    rmqd.signal(signal.SIGHUP)  # the configuration only names the secret's file, so it is unchanged
    rmqd.wait_ready()


def reload_with(rmqd: RmqdProcess, nameserver: str, group: dict[str, Any], client: dict[str, Any]) -> None:
    """Reload with other keys or certificates, as an operator does."""
    rmqd.write_config(nameserver, group, client)
    rmqd.signal(signal.SIGHUP)


def wait_refused(rmqd: RmqdProcess, reason: str, times: int) -> None:
    """Wait until /readyz and one more log line report the reason."""
    wait_until(partial(is_unready, rmqd, reason), f"/readyz reports: {reason}")
    refusals = wait_until(partial(refusals_of, rmqd, times), f"the log reports: {reason}")
    assert len(refusals) == times
    assert reason in refusals[-1]["reason"]


def refusals_of(rmqd: RmqdProcess, times: int) -> list[dict[str, Any]]:
    """The refusals in the log; empty if there are fewer than `times`."""
    found = rmqd.events("access.refused")
    return found if len(found) >= times else []


def has_grown(world: World, messages: int) -> bool:
    """Whether at least so many messages were handled."""
    return len(world.finished()) >= messages


def is_unready(rmqd: RmqdProcess, reason: str) -> bool:
    """Whether /readyz returns 503 with this reason."""
    status, body = rmqd.get("/readyz")
    return status == 503 and reason in body.decode()
