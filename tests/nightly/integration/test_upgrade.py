"""Upgrade from rmqd 0.1.0, and rollback: each version continues with the files that the other one wrote.

The old version is the code of its last commit, from git, with the libraries of this environment.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.handler_api.destinations.archive_manifest import BatchManifest, Layout, decode, encode
from rmqd.spark.engine.checkpoint import GenerationNote
from rmqd.spark.source.source_offsets import SourceOffsets
from tests.daemon.daemon_process import daemon
from tests.nightly.deploy.missing import missing
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

TOP = Path(__file__).parents[3]
LAST_0_1_0 = "b06797e25d5d1ec5a32ff8611ccba81004d70e23"
OLD, NEW = "0.1.0", "0.2.0"
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

HANDLER = """
import contextlib

from rmqd import AlreadyHandled, DeadLetter


def handle(batch, options):
    for message in batch:
        if message.keys == "bad":
            raise DeadLetter("it is bad")
        with open(options["file"], "a") as file:
            file.write(message.body.decode() + "\\n")


def in_one_transaction(batch, options):
    import psycopg

    with psycopg.connect(options["url"]) as connection, open(options["file"], "a") as file:
        for message in batch:
            with contextlib.suppress(AlreadyHandled), message.once(connection):
                file.write(message.body.decode() + "\\n")
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PYTHONPATH of each version."""
    archive = subprocess.run(["git", "archive", LAST_0_1_0, "rmqd", "handlers"], cwd=TOP, capture_output=True)
    if archive.returncode:
        missing(f"the code of {OLD} is not in this repository: git fetch --unshallow")
    old = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(old, filter="data")
    return {version: f"{top}{os.pathsep}{top / 'handlers'}" for version, top in ((OLD, old), (NEW, TOP))}


@dataclass(frozen=True, slots=True)
class World:
    """A RocketMQ, and the folder in which both versions run with one configuration."""

    folder: Path
    paths: dict[str, str]
    producer: Producer
    writers: tuple[str, ...]
    """The groups whose handlers write to a file."""

    def environment(self, version: str) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), self.paths[version]])}

    def send(self, *bodies: str, key: str = "") -> None:
        for body in bodies:
            self.producer.send(body.encode(), key=key)

    def handled(self, group: str) -> Counter[str]:
        path = self.folder / f"{group}.txt"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    async def rmqd(self, version: str, *arguments: str) -> tuple[int | None, str]:
        """Run a command, and return its exit code and its output."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rmqd", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=self.folder,
            env={**os.environ, **self.environment(version), "RMQD_CONFIG": str(self.folder / "rmqd.yaml")},
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    @asynccontextmanager
    async def daemon(self, version: str) -> AsyncIterator[None]:
        """Run the daemon, and stop it at the end of the block."""
        config = self.folder / "rmqd.yaml"
        async with daemon(config, environment=self.environment(version), folder=self.folder) as running:
            await running.started()
            yield
            running.send(signal.SIGTERM)
            assert await running.exit_code() == 0


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    """The store of `deduplicate`."""
    if request.param == "redis":
        return {"store": "redis", "url": request.getfixturevalue("redis_server").url}
    if request.param == "postgresql":
        return {"store": "postgresql", "url": request.getfixturevalue("database")}
    return {"store": "sqlite"}


@pytest.fixture
async def world(tmp_path: Path, paths: dict[str, str], store: dict[str, str]) -> AsyncIterator[World]:
    async with embedded_rocketmq(EmbeddedOptions(topics={"orders": 2})) as rocketmq:

        def group(name: str, **more: Any) -> dict[str, Any]:
            handler = {"plugin": "kept:handle", "options": {"file": str(tmp_path / f"{name}.txt")}}
            return {
                "subscriptions": {"orders": "*"}, "consume_from_where": "first_offset", "handler": handler, **more
            }  # fmt: skip

        book = group("book")
        book["handler"] = {
            "plugin": "kept:in_one_transaction",
            "options": {"file": str(tmp_path / "book.txt"), "url": store.get("url", "")},
        }
        config: dict[str, Any] = {
            "nameserver": rocketmq.nameserver,
            "state_dir": str(tmp_path / "state"),
            "http": {"listen": "127.0.0.1:0"},
            "log": {"format": "json"},
            "groups": {
                "mailer": group("mailer"),
                "once": group("once", deduplicate=store),
                **({"book": book} if store["store"] == "postgresql" else {}),
                "each": group("each", message_model="broadcasting"),
                "archive": group("archive")
                | {
                    "handler": {"plugin": "parquet", "options": {"path": str(tmp_path / "lake"), "roll_after": "200ms"}}
                },
            },
        }
        (tmp_path / "rmqd.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "kept.py").write_text(HANDLER)
        address = rocketmq.broker.address
        with await asyncio.to_thread(Producer, address, "orders", 2) as producer:
            yield World(tmp_path, paths, producer, tuple(one for one in config["groups"] if one != "archive"))


async def test_groups_continue_after_an_upgrade_and_a_rollback(world: World) -> None:
    """Offsets of a broadcasting group, records of `deduplicate` and `once`, and an archive's manifest are continued."""
    sent: list[str] = []
    for number, version in enumerate((OLD, NEW, OLD, NEW)):
        bodies = [f"{number}-{one}" for one in range(10)]
        await asyncio.to_thread(world.send, *bodies)
        sent += bodies
        async with world.daemon(version):
            await eventually(partial(has_all, world, len(sent)), "all groups have all messages", 100)
        if version == OLD:  # without offsets, the old version's records prevent repetitions
            for group in {"once", "archive", "book"} & {"archive", *world.writers}:
                code, output = await world.rmqd(version, "offsets", "reset", group, "orders", "--to", "first", "--yes")
                assert code == 0, output
    for group in world.writers:
        assert world.handled(group) == Counter(sent), group
    assert archived(world) == len(sent)


def has_all(world: World, count: int) -> bool:
    return {*(len(world.handled(group)) for group in world.writers), archived(world)} == {count}


def archived(world: World) -> int:
    """The rows of all files of the archive that the manifest lists."""
    entries = (world.folder / "lake" / "_manifest").rglob("*.json")
    return sum(json.loads(entry.read_text())["rows"] for entry in entries)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_commands_use_data_that_the_old_version_wrote(world: World) -> None:
    """A backup of offsets, and the records of purged dead letters."""
    await asyncio.to_thread(world.send, "good")
    await asyncio.to_thread(world.send, "b1", "b2", "b3", key="bad")
    async with world.daemon(OLD):
        await eventually(lambda: len(world.handled("each")) == 1, "the good message is handled")
        await eventually(lambda: archived(world) == 4, "all are read", 60)
    ids = await letters(world, OLD)
    assert len(ids) == 3

    code, output = await world.rmqd(OLD, "dlq", "purge", "mailer", "--id", ids[1], "--yes")
    assert code == 0, output
    assert await letters(world, NEW) == [ids[0], ids[2]]
    code, output = await world.rmqd(NEW, "dlq", "purge", "mailer", "--yes")
    assert code == 0, output
    assert await letters(world, NEW) == await letters(world, OLD) == []  # shown by the group's offset in its DLQ

    code, output = await world.rmqd(OLD, "offsets", "reset", "mailer", "orders", "--to", "first", "--yes")
    assert code == 0, output
    [backup] = (world.folder / "state" / "backups").glob("*.json")
    code, output = await world.rmqd(NEW, "offsets", "restore", str(backup), "--yes")
    assert code == 0, output
    code, output = await world.rmqd(NEW, "offsets", "show", "mailer", "orders", "-o", "json")
    assert [one["committed"] == one["max"] for one in json.loads(output)] == [True, True], output


async def letters(world: World, version: str) -> list[str]:
    """The ids of the group's remaining dead letters, as this version lists them."""
    code, output = await world.rmqd(version, "dlq", "show", "mailer", "-o", "json")
    assert code == 0, output
    return [one["msg_id"] for one in json.loads(output)]


OF_SPARK = """
import json
from rmqd.spark.engine.generation_note import Note
from rmqd.spark.pipelines.parquet_batch import Layout, Manifest
from rmqd.spark.source.offsets import Offsets
from rmqd.wire.message_queue import MessageQueue

queues = {MessageQueue("orders", "broker-a", 3): 7}
moves = (("topic=1/a.parquet", "topic=1/b.parquet"),)
files = [
    json.dumps(Offsets(queues, queues, queues).to_json()),
    Note(starting=queues, reason="a reset", told=False, held=queues, resets=queues).to_json().decode(),
    Manifest("staged/1", moves, ("topic=1/c.parquet",), 6).encode().decode(),
    Layout(("topic",), (("id", "bigint"),)).encode().decode(),
]
print(json.dumps(files))
"""


def test_checkpoints_and_manifests_of_spark_are_read(paths: dict[str, str], tmp_path: Path) -> None:
    """The files of a checkpoint, its generation, a batch and a folder. Each is written again with the same content."""
    environment = {**os.environ, "PYTHONPATH": paths[OLD]}
    written = subprocess.run(
        [sys.executable, "-c", OF_SPARK], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert written.returncode == 0, written.stderr
    offsets, note, manifest, layout = json.loads(written.stdout)
    assert SourceOffsets.from_json(json.loads(offsets)).to_json() == json.loads(offsets)
    assert json.loads(GenerationNote.from_json(note.encode()).to_json()) == json.loads(note)
    assert json.loads(encode(decode(BatchManifest, manifest.encode(), "it"))) == json.loads(manifest)
    assert json.loads(encode(decode(Layout, layout.encode(), "it"))) == json.loads(layout)
