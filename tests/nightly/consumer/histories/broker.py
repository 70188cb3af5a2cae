"""A broker with realistic timing: locks that expire, members that end with their connections, restarts that forget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from rmqd.wire.bodies.group_bodies import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.scripted_broker import ScriptedBroker
from tests.nightly.consumer.histories.virtual import VirtualPeer, _Transport

LOCK_SECONDS = 60.0
FLUSH_SECONDS = 5.0


class HistoryBroker(ScriptedBroker):
    """ScriptedBroker with the timing of a real broker."""

    def __init__(self, peer: VirtualPeer) -> None:
        super().__init__(peer)  # type: ignore[arg-type]
        self.virtual = peer
        self._locked_at: dict[tuple[str, MessageQueue], float] = {}
        self._clients: dict[_Transport, set[tuple[str, str]]] = {}  # (group, client id)
        self._telling: set[asyncio.Task[None]] = set()
        peer.on_lost = self._connection_lost

    def lock(self, command: RemotingCommand) -> Reply:
        """Lock queues that are free, or whose lock was not renewed for a minute."""
        body, now = LockBatchRequestBody.from_json(command.body), asyncio.get_running_loop().time()
        granted = set()
        for queue in body.queues:
            key = body.consumer_group, queue
            if now - self._locked_at.get(key, now) >= LOCK_SECONDS:
                self.locks.pop(key, None)
            if self.locks.setdefault(key, body.client_id) == body.client_id:
                self._locked_at[key] = now
                granted.add(queue)
        return Reply(body=LockBatchResponseBody(frozenset(granted)).to_json())

    def _heartbeat(self, command: RemotingCommand) -> Awaitable[Reply]:  # type: ignore[override]
        transport, data = self.virtual.sender, HeartbeatData.from_json(command.body)
        if transport is None or not transport.is_open:
            return _nothing()
        names = {(consumer.group_name, data.client_id) for consumer in data.consumer_data_set}
        self._clients.setdefault(transport, set()).update(names)
        return super()._heartbeat(command)

    def _connection_lost(self, transport: _Transport) -> None:
        for group, client_id in self._clients.pop(transport, ()):
            others = set().union(*self._clients.values())
            if (group, client_id) not in others and client_id in self.members[group]:
                self.members[group].remove(client_id)
                task = asyncio.get_running_loop().create_task(self._notify(group))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def flush(self) -> None:
        """Flush the offsets every 5 s, until cancelled."""
        self._flushed = dict(self.offsets)
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._flushed = dict(self.offsets)

    async def restart(self, seconds: float) -> None:
        """Be unreachable for some seconds. Locks and the offsets of the last seconds are lost."""
        self.virtual.listens = False
        self.virtual.die()
        self.locks.clear()
        self._locked_at.clear()
        self.members.clear()
        self.offsets = dict(self._flushed)
        await asyncio.sleep(seconds)
        self.virtual.listens = True


async def _nothing() -> Reply:
    return Reply()
