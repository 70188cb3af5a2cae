"""The daemon on embedded brokers: in a namespace, and on two clusters at once."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from tests.broker.peer import connected
from tests.daemon.daemon_here import DaemonHere, daemon_here
from tests.daemon.seeing_handler import PLUGIN, seen
from tests.waiting import eventually

QUEUES = 2


@asynccontextmanager
async def broker(*topics: str) -> AsyncIterator[EmbeddedRocketMQ]:
    """A broker with short delays that does not create topics automatically."""
    settings = BrokerSettings(messageDelayLevel=" ".join(["0s"] * 18), autoCreateTopicEnable=False)
    options = EmbeddedOptions(settings=settings, topics=dict.fromkeys(topics, QUEUES))
    async with embedded_rocketmq(options) as running:
        yield running


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


async def send(rocketmq: EmbeddedRocketMQ, topic: str, *keys: str) -> None:
    """Send a message for each key."""
    async with connected(rocketmq.broker.address) as peer:
        for key in keys:
            assert (await peer.send(topic, KEYS=key)).code == 0


async def ready(process: DaemonHere) -> httpx.AsyncClient:
    """Wait until every group has its queues, and return a client of the daemon's endpoint."""
    client = await process.started()

    async def is_ready() -> bool:
        return (await client.get("/readyz")).status_code == 200

    await eventually(is_ready, "every group has its queues")
    return client


async def test_only_brokers_see_the_namespace_of_a_group(tmp_path: Path) -> None:
    async with broker("shop%orders") as mq:
        await send(mq, "shop%orders", "plain", "retry", "dead")
        groups = {"mailer": group(tmp_path, "seen")}
        config = write(tmp_path, nameserver=mq.nameserver, client={"namespace": "shop"}, groups=groups)
        async with daemon_here(config) as process:
            client = await ready(process)
            await eventually(lambda: len(seen(tmp_path / "seen")) == 4, "all are handled, and one is retried")
            shown = [(await client.get(path)).text for path in ("/metrics", "/api/v1/status", "/readyz", "/")]
            paused = (await client.post("/api/v1/groups/mailer/pause?topic=orders")).json()
            assert (paused["queues"], paused["pauses"]) == (
                QUEUES,
                [{"topic": "orders", "broker": None, "queue": None}],
            )
            process.send(signal.SIGTERM)
            assert await process.exit_code() == 0
        committed = mq.broker.offsets.get("shop%mailer", "shop%orders", 0)
    assert sorted(seen(tmp_path / "seen")) == [
        ["dead", "orders", "orders", "orders", 0],
        ["plain", "orders", "orders", "orders", 0],
        ["retry", "orders", "%RETRY%mailer", "%RETRY%mailer", 1],
        ["retry", "orders", "orders", "orders", 0],
    ]
    assert committed == 3
    assert mq.broker.topics.get("%DLQ%shop%mailer") is not None
    assert [text for text in (*shown, *process.text) if "shop%" in text and "Traceback" not in text] == []
    assert 'topic="orders"' in shown[0]


async def test_two_clusters_in_one_daemon(tmp_path: Path) -> None:
    """Each group gets its cluster's messages, although topic, broker and queues have the same names on both."""
    async with broker("orders") as here, broker("orders") as there:
        await send(here, "orders", "n0", "n1", "n2")
        await send(there, "orders", "f", "f")
        clusters = {"tokyo": {"nameserver": there.nameserver}}
        groups = {"near": group(tmp_path, "near"), "far": group(tmp_path, "far", cluster="tokyo")}
        config = write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
        async with daemon_here(config) as process:
            client = await ready(process)
            await eventually(lambda: len(seen(tmp_path / "near")) == 3, "the near group has its messages")
            await eventually(lambda: len(seen(tmp_path / "far")) == 2, "the far group has its messages")
            status = (await client.get("/api/v1/status")).json()
            metrics = (await client.get("/metrics")).text
        ends = [(mq.broker.offsets.get(name, "orders", 0)) for mq, name in ((here, "near"), (there, "far"))]
    assert {line[0] for line in seen(tmp_path / "near")} == {"n0", "n1", "n2"}
    assert {line[0] for line in seen(tmp_path / "far")} == {"f"}
    assert {one["name"]: one["cluster"] for one in status["groups"]} == {"near": "default", "far": "tokyo"}
    assert 'rmqd_broker_up{broker="broker-a",broker_id="0"} 1.0' in metrics
    assert ends == [3, 2]


async def test_an_unreachable_cluster_makes_only_its_groups_unready(tmp_path: Path) -> None:
    """After a reload moves its group to another cluster, the group handles messages. The other group is unchanged."""
    async with broker("orders") as here:
        await send(here, "orders", "one")
        groups = {"near": group(tmp_path, "near"), "far": group(tmp_path, "far", cluster="tokyo")}
        clusters = {"tokyo": {"nameserver": "127.0.0.1:1", "client": {"access_key": "AKAK", "secret_key": "SKSK"}}}
        config = write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
        async with daemon_here(config) as process:
            client = await process.started()
            await eventually(lambda: seen(tmp_path / "near"), "the near group handles messages")
            readiness = (await client.get("/readyz")).text.splitlines()
            (reason,) = [line for line in readiness if line.startswith("[-]")]
            assert reason.startswith("[-] group far: group far waits for its first queues of orders: no name")
            groups["far"]["cluster"] = ""
            write(tmp_path, nameserver=here.nameserver, clusters=clusters, groups=groups)
            process.send(signal.SIGHUP)
            reloaded = await process.event("config.reloaded")
            assert (reloaded["unchanged"], reloaded["restarted"]) == (["near"], ["far"])
            await eventually(lambda: seen(tmp_path / "far"), "the far group handles messages of the default cluster")
        assert not any(secret in line for line in process.text for secret in ("AKAK", "SKSK"))
