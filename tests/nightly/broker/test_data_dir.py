"""A broker's folder: its contents after a stop and after a crash, and errors of an unusable folder.

The core of these tests is in tests/broker/test_data_dir.py.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.broker.store.data_dir import FILE_NAME
from rmqd.broker.store.journal import JournalKind
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.command import FrameDecoder, decode_command, encode_request
from tests.broker.peer import connected
from tests.broker.popping import popped
from tests.broker.stores import bodies, in_folder, put
from tests.broker.test_data_dir import crashed, send_header
from tests.clock import ManualClock
from tests.nightly.broker.test_unusable_folders import full_disk


async def test_text_that_cannot_be_stored_does_not_affect_other_writes(tmp_path: Path) -> None:
    store, data_dir = in_folder(tmp_path)
    with closing(data_dir):
        put(store, "before")
        with pytest.raises(ProtocolError, match="lone surrogate"):
            data_dir.put(JournalKind.OFFSET, "T@\ud800@0", "1")
        data_dir.commit()

    store, data_dir = in_folder(tmp_path)
    with closing(data_dir):
        assert bodies(store) == ["before"]


async def test_a_closing_connection_does_not_acknowledge_an_uncommitted_send(tmp_path: Path) -> None:
    """An undecodable frame closes a connection at once, when the send before it is not committed yet."""
    options = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1})
    header = send_header()
    async with embedded_rocketmq(options) as rocketmq:
        reader, writer = await asyncio.open_connection(*rocketmq.broker.address.split(":"))
        with full_disk(tmp_path / FILE_NAME):
            no_command = bytes([0, 0, 0, 6, 0, 0, 0, 2]) + b"??"
            writer.write(encode_request(header.code, 1, header.ext_fields(), b"unsure" * 10_000) + no_command)
            [payload] = FrameDecoder().feed(await reader.read())
        writer.close()
        await writer.wait_closed()

    assert decode_command(payload).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_offsets_are_never_reused(tmp_path: Path) -> None:
    """A group with offset 3 must receive the next message, even if all messages of the queue were deleted."""
    clock = ManualClock()
    settings = BrokerSettings(fileReservedTime=1)
    store, data_dir = in_folder(tmp_path, settings, clock)
    with closing(data_dir):
        last = [put(store, "old") for _ in range(3)][-1]
        clock.turn(3600 * 2)
        assert store.expire() == 3

    store, data_dir = in_folder(tmp_path, settings, clock)
    with closing(data_dir):
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (3, 3)
        stored = put(store, "new")
        assert stored.queue_offset == 3
        assert stored.commit_log_offset > last.commit_log_offset
        store.delete_topic("T")

    store, data_dir = in_folder(tmp_path, settings, clock)
    with closing(data_dir):
        assert store.queue("T", 0) is None
        assert put(store).commit_log_offset > stored.commit_log_offset


async def test_other_users_cannot_read_the_messages(tmp_path: Path) -> None:
    """Neither the umask nor the mode of an older database changes that."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / FILE_NAME).touch(mode=0o644)
    former = os.umask(0)
    try:
        for name in ("old", "new"):
            store, data_dir = in_folder(tmp_path / name)
            with closing(data_dir):
                put(store)
                await asyncio.sleep(0)
                modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / name).iterdir()}
            assert len(modes) >= 2
            assert set(modes.values()) == {oct(0o640)}, modes
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(former)


async def test_free_space_in_the_file_is_reused(tmp_path: Path) -> None:
    """A full folder does not grow."""
    store, data_dir = in_folder(tmp_path, BrokerSettings(maxStoreSize=500_000))
    with closing(data_dir):
        for _ in range(3000):
            put(store, b"x" * 1000)
            await asyncio.sleep(0)
    assert (tmp_path / FILE_NAME).stat().st_size < 1_000_000

    store, data_dir = in_folder(tmp_path)
    with closing(data_dir):
        assert store.size_bytes <= 500_000
        assert len(bodies(store)) == store.max_offset("T", 0) - store.min_offset("T", 0)


async def test_messages_of_a_deleted_topic_or_file_are_not_reported_as_missing(tmp_path: Path) -> None:
    """Also if the process dies right after the deletion."""
    store, data_dir = in_folder(tmp_path / "data")
    with closing(data_dir):
        put(store, topic="T")
        await asyncio.sleep(0)
        put(store, topic="U")
        store.delete_topic("U")
        await asyncio.sleep(0)
        store.delete_topic("T")
        await asyncio.sleep(0)
        left = crashed(tmp_path / "data")
        put(store)
    (tmp_path / "data" / FILE_NAME).unlink()

    with capture_logs() as logs:
        in_folder(left)[1].close()
        in_folder(tmp_path / "data")[1].close()
    assert logs == []


async def test_a_crash_within_a_loop_iteration_keeps_nothing_of_the_iteration(tmp_path: Path) -> None:
    """A delayed message and the record of its delivery become durable together or not at all."""
    store, data_dir = in_folder(tmp_path / "data")
    with closing(data_dir):
        put(store, "before")
        await asyncio.sleep(0)
        data_dir.put(JournalKind.DELAY, "1", "7")
        put(store, "half")
        left = crashed(tmp_path / "data")

    store, data_dir = in_folder(left)
    with closing(data_dir):
        assert bodies(store) == ["before"]
        assert list(data_dir.items(JournalKind.DELAY)) == []


async def test_writes_without_a_response_are_durable_at_the_end_of_the_iteration(tmp_path: Path) -> None:
    """The schedule and retention write without a request."""
    store, data_dir = in_folder(tmp_path / "data")
    with closing(data_dir):
        put(store, "delivered")
        await asyncio.sleep(0)
        left = crashed(tmp_path / "data")

    store, data_dir = in_folder(left)
    with closing(data_dir):
        assert bodies(store) == ["delivered"]


async def test_the_cluster_keeps_its_id_at_another_address(tmp_path: Path) -> None:
    """Another embedded RocketMQ has the same names, but another id."""
    ids = []
    for data_dir in (tmp_path, tmp_path, None):
        async with embedded_rocketmq(EmbeddedOptions(data_dir=data_dir)) as rocketmq:
            client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)))
            ids.append(await client.cluster_id.learn(may_write=False))
            await client.close()
    assert ids[0] == ids[1] != ids[2] != ""


async def test_a_damaged_message_does_not_block_the_delivery_of_others(tmp_path: Path) -> None:
    """Neither a message with a delay level, nor a timer message, nor a popped message."""
    options, clock = EmbeddedOptions(data_dir=tmp_path, topics={"T": 1, "U": 1}), ManualClock()
    async with embedded_rocketmq(options, clock) as rocketmq, connected(rocketmq.broker.address) as peer:
        for name in "damaged", "good":
            await peer.send("T", f"{name} delay".encode(), DELAY="1")
            await peer.send("T", f"{name} timer".encode(), TIMER_DELAY_SEC="2")
            await peer.send("U", f"{name} pop".encode())
        assert len(await popped(peer, "U", invisible_time=2000)) == 2
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        damage = "UPDATE record SET record = zeroblob(length(record)) WHERE instr(record, CAST('damaged' AS BLOB))"
        assert database.execute(damage).rowcount == 3

    clock.turn(10)
    with capture_logs() as logs:
        async with embedded_rocketmq(options, clock) as rocketmq:
            rocketmq.broker.schedule.wake()
            assert sorted(bodies(rocketmq.broker.store)) == ["good delay", "good timer"]
            assert bodies(rocketmq.broker.store, "%RETRY%g_U") == ["good pop"]
            assert rocketmq.broker.schedule.next_due() is None
    assert [entry["event"] for entry in logs] == ["broker.message_dropped"] * 3
