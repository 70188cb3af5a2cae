"""A broker's folder that is damaged, full, foreign, or larger than the memory cache: errors and kept messages.

The contents of a usable folder are tested in tests/broker/test_data_dir.py.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.broker.store.data_dir import FILE_NAME, DataDir
from rmqd.broker.store.journal import RecordRow
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import StorageError
from rmqd.errors.broker_errors import ServiceNotAvailableError
from tests.broker.stores import bodies, in_folder, put
from tests.broker.test_data_dir import crashed, send
from tests.clock import ManualClock


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Limit the size of files to the present size of this file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_second_broker_is_rejected_until_the_first_has_stopped(tmp_path: Path) -> None:
    """Two brokers would overwrite each other's messages."""
    with closing(DataDir(tmp_path)), pytest.raises(StorageError, match="in use by another broker"):
        DataDir(tmp_path)
    DataDir(tmp_path).close()


def _noise(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (a)")


def _newer(path: Path) -> None:
    DataDir(path.parent).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def _folder(path: Path) -> None:
    path.mkdir()


def _damaged(path: Path) -> None:
    store, data_dir = in_folder(path.parent)
    with closing(data_dir):
        for _ in range(500):
            put(store, b"x" * 500)
    data = bytearray(path.read_bytes())
    data[8192 : len(data) // 2] = bytes(len(data) // 2 - 8192)
    path.write_bytes(data)


def _no_text(path: Path) -> None:
    store, data_dir = in_folder(path.parent)
    with closing(data_dir):
        put(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE record SET topic = CAST(X'FF' AS TEXT)")


def _gap(path: Path) -> None:
    store, data_dir = in_folder(path.parent)
    with closing(data_dir):
        for _ in range(5):
            put(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM record WHERE queue_offset = 2")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_noise, "damaged, or not a database"),
        (_foreign, "not a database of rmqd"),
        (_newer, "needs a newer rmqd"),
        (_folder, "cannot be used"),
        (_damaged, "damaged"),
        (_no_text, "damaged"),
        (_gap, "in queue T:0, offset 3 follows offset 1"),
    ],
)
async def test_an_unusable_folder_is_rejected_with_the_reason(tmp_path: Path, spoil: object, said: str) -> None:
    """The error also names the folder."""
    assert callable(spoil)
    spoil(tmp_path / FILE_NAME)

    with pytest.raises(StorageError, match=said) as error:
        in_folder(tmp_path)

    assert str(tmp_path) in str(error.value)


async def test_a_crash_keeps_the_state_at_the_end_of_a_loop_iteration(tmp_path: Path) -> None:
    """After puts, deletions for age or size, and deletions of topics."""
    chance, clock = random.Random(5), ManualClock()
    settings = BrokerSettings(fileReservedTime=1, maxStoreSize=4000)
    store, data_dir = in_folder(tmp_path / "data", settings, clock)
    with closing(data_dir):
        for turn in range(25):
            for _ in range(chance.randrange(6)):
                put(store, b"x" * chance.randrange(200), topic=chance.choice("TU"), queue_id=chance.randrange(2))
            clock.turn(chance.choice((1, 600)))
            if turn % 4 == 1:
                store.expire()
            if turn % 9 == 8:
                store.delete_topic("U")
            await asyncio.sleep(0)

            left = shutil.copytree(tmp_path / "data", tmp_path / str(turn))
            again, its_data_dir = in_folder(Path(left), settings, clock)
            with closing(its_data_dir):
                for topic, queue_id in itertools.product("TU", range(2)):
                    assert again.min_offset(topic, queue_id) == store.min_offset(topic, queue_id)
                    assert again.max_offset(topic, queue_id) == store.max_offset(topic, queue_id)
                    assert bodies(again, topic, queue_id) == bodies(store, topic, queue_id)
                assert (again.end, again.size_bytes) == (store.end, store.size_bytes)
    assert store.min_offset("T", 0) > 0


async def test_old_records_are_read_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds only the newest records. One read may need both."""
    monkeypatch.setattr("rmqd.broker.store.data_dir.CACHE_BYTES", 10_000)
    with closing(DataDir(tmp_path)) as data_dir:
        for number in range(40):
            data_dir.append(RecordRow(number, "T", 0, number, 0, 0, b"%d" % number * 500))
            data_dir.commit()

        assert data_dir.read_many(range(20, 40)) == [b"%d" % number * 500 for number in range(20, 40)]
        assert data_dir.read(3) == b"3" * 500
        with pytest.raises(KeyError):
            data_dir.read_many([3, 40])


async def test_a_full_disk_acknowledges_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """The producer gets an error. With space again, the unacknowledged message is stored in order."""
    options = EmbeddedOptions(data_dir=tmp_path / "data", topics={"T": 1})
    remoting = RemotingClient()
    try:
        async with embedded_rocketmq(options) as rocketmq:
            assert await send(remoting, rocketmq, b"before") == 0
            with full_disk(tmp_path / "data" / FILE_NAME):
                with pytest.raises(ServiceNotAvailableError):
                    await send(remoting, rocketmq, b"unsure" * 10_000)
                with pytest.raises(ServiceNotAvailableError):
                    await send(remoting, rocketmq, b"refused")
            left = crashed(tmp_path / "data")
            assert await send(remoting, rocketmq, b"after") == 2
    finally:
        await remoting.close()

    for directory, expected in ((left, ["before"]), (tmp_path / "data", ["before", "unsure" * 10_000, "after"])):
        store, data_dir = in_folder(directory)
        with closing(data_dir):
            assert bodies(store) == expected


def _cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)


def _flipped(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def _gone(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("spoil", [_cut, _flipped, _gone])
async def test_messages_lost_by_a_damaged_log_are_reported_once(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """SQLite drops everything from the first damage on, without a report."""
    clock = ManualClock()
    store, data_dir = in_folder(tmp_path / "data", clock=clock)
    with closing(data_dir):
        for number in range(100):
            put(store, str(number))
            clock.turn(60)
            await asyncio.sleep(0)
        left = crashed(tmp_path / "data")
    spoil(left / f"{FILE_NAME}-wal")

    with capture_logs() as logs:
        store, data_dir = in_folder(left)
        data_dir.close()
    assert store.max_offset("T", 0) < 100
    [told] = logs
    assert (told["event"], told["last_stored"] > (told["last_found"] or "")) == ("broker.messages_missing", True)

    with capture_logs() as logs:
        in_folder(left)[1].close()
    assert logs == []
