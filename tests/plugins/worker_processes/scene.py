"""A daemon with an embedded broker. Its group runs the handler in worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.testing.message_factory import messages_of
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.messages.message import Message
from tests.daemon.daemon_process import DaemonProcess, daemon
from tests.plugins.worker_processes.pools import GROUP
from tests.plugins.worker_processes.scripted_handler import NOTING, notes
from tests.waiting import eventually

QUEUES = 2


@dataclass
class Scene:
    """The daemon, the group's messages and the notes of its handler."""

    process: DaemonProcess
    http: httpx.AsyncClient
    config: Path
    _folder: Path
    _mq: EmbeddedRocketMQ
    _client: ClientInstance

    async def send(self, key: str, line: str = "pass", queue: int | None = None) -> None:
        """Send a message; the handler runs this line."""
        message = OutgoingMessage("orders", line.encode(), keys=key)
        await self._client.producer.send(message, selector=None if queue is None else select_by_id(queue, ""))

    def keys(self, event: str = "end") -> list[str]:
        """The keys of the messages for which handlers noted this event."""
        return [key for noted, key, _ in notes(self._folder / "notes") if noted == event]

    def pids(self, event: str) -> list[int]:
        """The processes that noted this event."""
        return [int(pid) for noted, _, pid in notes(self._folder / "notes") if noted == event]

    def dead_letters(self) -> dict[str, Message]:
        """The group's dead letters by key."""
        topic = f"%DLQ%{GROUP}"
        known = self._mq.broker.topics.get(topic) is not None
        return {one.keys or "": one for one in messages_of(self._mq.broker, topic)} if known else {}

    def committed(self) -> int:
        """The sum of the group's committed offsets."""
        return sum(self._mq.broker.offsets.queues(GROUP, "orders").values())

    def rewrite(self, *, handler: Mapping[str, Any] | None = None, log: str = "debug") -> None:
        """Change the configuration: keys of the handler, and the level of the log."""
        keys = yaml.safe_load(self.config.read_text())
        keys["groups"][GROUP]["handler"] |= handler or {}
        keys["log"]["level"] = log
        self.config.write_text(yaml.safe_dump(keys))

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = (await self.http.get("/metrics")).text.splitlines()
        found = [line for line in lines if line.startswith(f"{name}{{") and all(one in line for one in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)


@asynccontextmanager
async def scene(
    folder: Path, *arguments: str, handler: Mapping[str, Any] | None = None, log: str = "info", **keys: Any
) -> AsyncIterator[Scene]:
    """Run the daemon, and wait until its group is ready."""
    settings = BrokerSettings(messageDelayLevel=" ".join(["1s"] * 18))
    async with embedded_rocketmq(EmbeddedOptions(settings=settings, topics={"orders": QUEUES})) as mq:
        if keys.get("consume_mode") == "pop":  # as an administrator does by mqadmin setConsumeMode
            mq.broker.groups.set_request_mode(SetMessageRequestModeRequestBody("orders", GROUP, MessageRequestMode.POP))
        config = folder / "rmqd.yaml"
        write(config, mq.nameserver, handler or {}, log, keys)
        client = ClientInstance(ClientOptions(nameservers=(mq.nameserver,)))
        environment = {"NOTES": str(folder / "notes")}
        try:
            async with daemon(config, *arguments, environment=environment) as process:
                http = await process.started()
                await eventually(lambda: is_ready(http), "the group has its queues", 60)
                yield Scene(process, http, config, folder, mq, client)
        except AssertionError as error:
            error.add_note("".join(process.text))
            raise
        finally:
            await client.close()


async def is_ready(http: httpx.AsyncClient) -> bool:
    """Whether the daemon reports that it is ready."""
    return (await http.get("/readyz")).status_code == 200


def write(config: Path, nameserver: str, handler: Mapping[str, Any], log: str, keys: Mapping[str, Any]) -> None:
    """Write the configuration."""
    own = {"plugin": NOTING, "processes": 2, **handler}
    group = {"subscriptions": {"orders": "*"}, "consume_from_where": "first_offset", "handler": own, **keys}
    fixed = {"http": {"listen": "127.0.0.1:0"}, "log": {"format": "json", "level": log}}
    config.write_text(
        yaml.safe_dump({**fixed, "nameserver": nameserver, "state_dir": str(config.parent), "groups": {GROUP: group}})
    )
