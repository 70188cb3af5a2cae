"""The daemon on embedded brokers: in a namespace, and on two clusters at once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import VIP_DISTANCE, EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.api.group_requests import consumer_connection
from rmqd.client.api.offset_requests import query_consumer_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.wire.message_queue import MessageQueue
from tests.cli.command import Ended, rmqd
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import DaemonProcess, daemon
from tests.daemon.seeing_handler import PLUGIN, seen
from tests.daemon.test_clusters_at_work import broker as quick_broker
from tests.daemon.test_clusters_at_work import ready as ready_here
from tests.daemon.test_clusters_at_work import send
from tests.rocketmq.spec import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.process

QUEUES = 2
UNIT, UNIT_SUB = 1, 2  # topicSysFlag
IN_SHOP = [MessageQueue("shop%orders", "broker-a", number) for number in range(QUEUES)]


@asynccontextmanager
async def broker(*topics: str) -> AsyncIterator[EmbeddedRocketMQ]:
    """A broker with short delays that does not create topics automatically."""
    settings = BrokerSettings(messageDelayLevel=" ".join(["1s"] * 18), autoCreateTopicEnable=False)
    options = EmbeddedOptions(settings=settings, topics=dict.fromkeys(topics, QUEUES))
    async with embedded_rocketmq(options) as running:
        yield running


@asynccontextmanager
async def connections() -> AsyncIterator[RemotingClient]:
    """The connections of the test."""
    remoting = RemotingClient()
    try:
        yield remoting
    finally:
        await remoting.close()


def group(folder: Path, name: str, **keys: Any) -> dict[str, Any]:
    """A group whose handler records the messages of orders."""
    handler = {"plugin": PLUGIN, "options": {"path": str(folder / name)}}
    return {"subscriptions": {"orders": "*"}, "consume_from_where": "first_offset", "handler": handler, **keys}


def write(folder: Path, **keys: Any) -> Path:
    """A configuration with these keys at the top."""
    path = folder / "rmqd.yaml"
    fixed = {"http": {"listen": "127.0.0.1:0"}, "log": {"format": "json"}, "state_dir": str(folder / "state")}
    path.write_text(yaml.safe_dump(fixed | keys))
    return path


async def ask(*arguments: str | Path) -> Ended:
    """Run a command in a thread, so that the brokers of the event loop can respond."""
    return await asyncio.to_thread(rmqd, *arguments)


async def ready(process: DaemonProcess) -> Any:
    """Wait until every group has its queues, and return a client of the daemon's endpoint."""
    client = await process.started()

    async def is_ready() -> bool:
        return bool((await client.get("/readyz")).status_code == 200)

    await eventually(is_ready, "every group has its queues", 60)
    return client


async def test_only_brokers_see_the_namespace_of_a_group_with_two_workers(tmp_path: Path) -> None:
    async with broker("shop%orders") as mq, connections() as remoting:
        groups = {"mailer": group(tmp_path, "seen")}
        config = write(tmp_path, nameserver=mq.nameserver, client={"namespace": "shop"}, groups=groups)
        async with daemon(config, "--workers", "2") as process:
            client = await ready(process)
            sent = [await ask("send", "orders", "x", "--keys", key, "-c", config) for key in ("plain", "retry", "dead")]
            assert [(one.code, "  orders  broker-a  " in one.out) for one in sent] == [(0, True)] * 3
            await eventually(lambda: len(seen(tmp_path / "seen")) == 4, "all are handled, and one of them again", 60)
            assert sorted(seen(tmp_path / "seen")) == [
                ["dead", "orders", "orders", "orders", 0],
                ["plain", "orders", "orders", "orders", 0],
                ["retry", "orders", "%RETRY%mailer", "%RETRY%mailer", 1],
                ["retry", "orders", "orders", "orders", 0],
            ]
            members = await consumer_connection(remoting, mq.broker.address, "shop%mailer")
            assert set(members.subscription_table) == {"shop%orders", "%RETRY%shop%mailer"}
            assert mq.broker.topics.get("%DLQ%shop%mailer") is not None
            shown = [(await client.get(path)).text for path in ("/metrics", "/api/v1/status", "/readyz", "/")]
            checked = await ask("check", "--connect", "-c", config)
            assert (checked.code, "groups.mailer.subscriptions.orders: 2 queues" in checked.out) == (0, True)
            lags = await ask("lag", "-c", config, "-o", "json")
            assert [(one["group"], one["topic"]) for one in lags.json()] == [
                ("mailer", "orders"),
                ("mailer", "%RETRY%mailer"),
            ]
            paused = (await client.post("/api/v1/groups/mailer/pause?topic=orders")).json()
            assert (paused["queues"], paused["pauses"]) == (
                QUEUES,
                [{"topic": "orders", "broker": None, "queue": None}],
            )
            process.send(signal.SIGTERM)
            assert await process.exit_code() == 0
        committed = [
            await query_consumer_offset(remoting, mq.broker.address, "shop%mailer", queue) for queue in IN_SHOP
        ]
        assert sum(offset or 0 for offset in committed) == 3
    shown += [line for line in process.text if "Traceback" not in line] + [lags.out, lags.err, checked.out, checked.err]
    assert [text for text in shown if "shop%" in text] == []
    assert 'topic="orders"' in shown[0]


@pytest.mark.parametrize(("mode", "retried_from"), [("orderly", "orders"), ("pop", "%RETRY%mailer_orders")])
async def test_only_brokers_see_namespaces_in_other_consume_modes(tmp_path: Path, mode: str, retried_from: str) -> None:
    async with broker("shop%orders", "%DLQ%shop%mailer") as mq, connections() as remoting:
        if mode == "pop":
            popped = {"topic": "shop%orders", "consumerGroup": "shop%mailer", "mode": "POP", "popShareQueueNum": 0}
            code = RequestCode.SET_MESSAGE_REQUEST_MODE
            await remoting.invoke(mq.broker.address, code, {}, json.dumps(popped).encode())
        groups = {"mailer": group(tmp_path, "seen", consume_mode=mode)}
        config = write(tmp_path, nameserver=mq.nameserver, client={"namespace": "shop"}, groups=groups)
        async with daemon(config) as process:
            client = await ready(process)
            for key in ("retry", "dead"):
                assert (await ask("send", "orders", "x", "--keys", key, "-c", config)).code == 0
            await eventually(lambda: len(seen(tmp_path / "seen")) == 3, "both are handled, and one of them again", 60)
            shown = [(await client.get(path)).text for path in ("/metrics", "/api/v1/status")]
            process.send(signal.SIGTERM)
            assert await process.exit_code() == 0
    assert sorted(seen(tmp_path / "seen")) == [
        ["dead", "orders", "orders", "orders", 0],
        *sorted([["retry", "orders", "orders", "orders", 0], ["retry", "orders", retried_from, retried_from, 1]]),
    ]
    assert [text for text in (*shown, *process.text) if "shop%" in text] == []


async def test_two_clusters_in_two_workers(tmp_path: Path) -> None:
    """Each group gets its cluster's messages, although topic, broker and queues have the same names on both."""
    async with broker("orders") as here, broker("orders") as there:
        clusters = {"tokyo": {"nameserver": there.nameserver}}
        groups = {"near": group(tmp_path, "near"), "far": group(tmp_path, "far", cluster="tokyo")}
        config = write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
        async with daemon(config, "--workers", "2") as process:
            client = await ready(process)
            for number in range(3):
                assert (await ask("send", "orders", "x", "--keys", f"n{number}", "-c", config)).code == 0
            sent = await ask("send", "orders", "x", "--keys", "f", "--count", "2", "--cluster", "tokyo", "-c", config)
            assert sent.code == 0, sent.err
            await eventually(lambda: len(seen(tmp_path / "near")) == 3, "the near group has its messages", 60)
            await eventually(lambda: len(seen(tmp_path / "far")) == 2, "the far group has its messages", 60)
            assert {line[0] for line in seen(tmp_path / "near")} == {"n0", "n1", "n2"}
            assert {line[0] for line in seen(tmp_path / "far")} == {"f"}
            status = (await client.get("/api/v1/status")).json()
            assert {one["name"]: one["cluster"] for one in status["groups"]} == {"near": "default", "far": "tokyo"}
            metrics = (await client.get("/metrics")).text
            assert 'rmqd_broker_up{broker="broker-a",broker_id="0"} 1.0' in metrics
            checked = await ask("check", "--connect", "-c", config)
            assert (checked.code, f"clusters.tokyo: name server {there.nameserver}" in checked.out) == (0, True)
            process.send(signal.SIGTERM)
            assert await process.exit_code() == 0
        lags = (await ask("lag", "-c", config, "-o", "json")).json()
        ends = {(one["group"], one["topic"]): (one["lag"], sum(q["max"] for q in one["queues"])) for one in lags}
        assert (ends["near", "orders"], ends["far", "orders"]) == ((0, 3), (0, 2))
        only = (await ask("lag", "--cluster", "tokyo", "-c", config, "-o", "json")).json()
        assert {one["group"] for one in only} == {"far"}


async def test_an_unreachable_cluster_makes_only_its_groups_unready(tmp_path: Path) -> None:
    """After a reload moves its group to another cluster, the group handles messages. The other group is unchanged."""
    async with broker("orders") as here:
        groups = {"near": group(tmp_path, "near"), "far": group(tmp_path, "far", cluster="tokyo")}
        clusters = {"tokyo": {"nameserver": "127.0.0.1:1", "client": {"access_key": "AKAK", "secret_key": "SKSK"}}}
        config = write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
        async with daemon(config) as process:
            client = await process.started()
            await ask("send", "orders", "x", "--keys", "one", "-c", config)
            await eventually(lambda: seen(tmp_path / "near"), "the near group handles", 60)
            readiness = (await client.get("/readyz")).text.splitlines()
            (reason,) = [line for line in readiness if line.startswith("[-]")]
            assert reason.startswith("[-] group far: group far waits for its first queues of orders: no name")
            lag = await ask("lag", "-c", config, "-o", "json")
            assert (lag.code, [one["group"] for one in json.loads(lag.out)]) == (69, ["near", "near"])
            groups["far"]["cluster"] = ""
            write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
            process.send(signal.SIGHUP)
            reloaded = await process.event("config.reloaded")
            assert (reloaded["unchanged"], reloaded["restarted"]) == (["near"], ["far"])
            await eventually(lambda: seen(tmp_path / "far"), "the far group handles what is here", 60)
            assert not any(secret in line for line in process.text for secret in ("AKAK", "SKSK"))


async def test_a_unit_is_sent_to_brokers_with_the_vip_channel(tmp_path: Path) -> None:
    """Brokers flag the topics that they create for it. The client id contains the unit."""
    options = EmbeddedOptions(broker_port=free_port(set(), (0, -VIP_DISTANCE)))
    client = {"unit_name": "u1", "unit_mode": True, "vip_channel_enabled": True}
    async with embedded_rocketmq(options) as mq:
        config = write(tmp_path, nameserver=mq.nameserver, client=client, groups={"near": group(tmp_path, "near")})
        sent = await ask("send", "orders", "x", "--keys", "one", "-c", config)
        assert sent.code == 0, sent.err
        async with daemon(config) as process:
            status = (await (await ready(process)).get("/api/v1/status")).json()
            await eventually(lambda: seen(tmp_path / "near"), "the message is handled", 60)
        assert status["client_id"].endswith("@u1")
        topics = {name: mq.broker.topics.get(name) for name in ("orders", "%RETRY%near")}
        assert {name: topic and topic.topic_sys_flag for name, topic in topics.items()} == {
            "orders": UNIT,
            "%RETRY%near": UNIT_SUB,
        }


async def test_clusters_with_the_same_names_have_separate_offsets(tmp_path: Path) -> None:
    """Groups start as new groups on the second cluster, and continue later on the first. The state_dir is the same."""
    keys = {"deduplicate": {"by": "keys"}}
    groups = {"all": group(tmp_path, "all", message_model="broadcasting"), "one": group(tmp_path, "one", **keys)}
    async with quick_broker("orders") as here, quick_broker("orders") as there:
        await send(here, "orders", "a", "b")
        await send(there, "orders", "a", "b", "c")
        for mq, count in ((here, 2), (there, 5), (here, 6)):
            if count == 6:
                await send(here, "orders", "d")
            config = write(tmp_path, nameserver=mq.nameserver, groups=groups)
            async with daemon_here(config) as process:
                await ready_here(process)
                for name in groups:
                    await eventually(lambda n=name, c=count: len(seen(tmp_path / n)) >= c, f"{name} has {count}")  # type: ignore[misc]
                process.send(signal.SIGTERM)
                assert await process.exit_code() == 0
    for name in groups:
        keys_seen = [line[0] for line in seen(tmp_path / name)]
        assert [sorted(part) for part in (keys_seen[:2], keys_seen[2:5], keys_seen[5:])] == [
            ["a", "b"],
            ["a", "b", "c"],
            ["d"],
        ]
