"""Durability: the embedded broker is killed -9 under load many times, and its data is checked after each start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rmqd.client.api.offset_requests import query_consumer_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.messages.message import Message
from tests.nightly.campaigns.durability_load import (
    GROUP,
    LATER,
    QUEUES,
    TOPIC,
    Acknowledged,
    Load,
    Stored,
    number_of,
    pull,
    queue,
)

READY_SECONDS = 20.0
DELIVERY_SECONDS = 30.0
POLL_SECONDS = 0.1
MAX_TOLD = 10
NUMBERS_PER_LIFE = 1_000_000


@dataclass(frozen=True, slots=True)
class DurabilityPlan:
    """A run: how often the broker is killed, and after how much load."""

    seed: int
    kills: int
    load_seconds: tuple[float, float] = (0.1, 2.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One life of the broker: the problems found at its start, and the acknowledgements until its end."""

    life: int
    ready_seconds: float
    acknowledged: Acknowledged
    problems: list[str]

    def line(self) -> str:
        """The round as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Round:
        """Parse a round from its line."""
        values: dict[str, Any] = json.loads(line)
        kept = values["acknowledged"]
        committed = {int(queue_id): (low, high) for queue_id, (low, high) in kept["committed"].items()}
        acknowledged = Acknowledged([Stored(*one) for one in kept["stored"]], kept["later"], committed)
        return cls(values["life"], values["ready_seconds"], acknowledged, values["problems"])


@dataclass(frozen=True, slots=True)
class DurabilityResult:
    """The result of a run. `unacknowledged` messages are stored, but the broker died before its response."""

    plan: DurabilityPlan
    rounds: Sequence[Round]
    unacknowledged: int
    problems: Sequence[str]
    size_bytes: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no message was lost, wrong or duplicated."""
        return not self.problems

    def cells(self) -> list[object]:
        """Return the row of the campaign's table."""
        stored = sum(len(one.acknowledged.stored) for one in self.rounds)
        later = sum(len(one.acknowledged.later) for one in self.rounds)
        ready = sorted(one.ready_seconds for one in self.rounds)
        return [
            self.plan.seed,
            len(self.rounds),
            stored,
            later,
            self.unacknowledged,
            f"{self.size_bytes / 1e6:.0f} MB",
            f"{ready[len(ready) // 2]:.2f} s, {ready[-1]:.2f} s",
            f"{self.seconds:.0f}",
            "; ".join(self.problems[:MAX_TOLD]) or "none",
        ]

    def report(self) -> str:
        seed, kills, stored, later, unacknowledged, size, ready, seconds, problems = self.cells()
        return (
            f"durability, seed {seed}, {seconds} s: killed -9 {kills} times; {stored} messages acknowledged, "
            f"{later} more for later, {unacknowledged} stored and not acknowledged; {size} on disk; "
            f"ready after {ready} (median, longest)\nlost, wrong or twice: {problems}"
        )


@dataclass(slots=True)
class Seen:
    """Data read so far: read positions, messages by queue and offset, and the number of checked rounds."""

    at: Counter[tuple[str, int]] = field(default_factory=Counter)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    numbers: Counter[int] = field(default_factory=Counter)
    rounds: int = 0
    problems: list[str] = field(default_factory=list)


class Durability:
    """One run in a directory. A new start with the same directory continues after the broker's last life."""

    def __init__(self, plan: DurabilityPlan, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._directory = directory
        self._ports = (_free_port(), _free_port())
        self._file = directory / "rounds.jsonl"
        self._seen = Seen()

    def run(self) -> DurabilityResult:
        """Kill the broker as often as the plan says, and check all its data at the end."""
        begin = time.monotonic()
        rounds = [Round.of(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []
        moments = random.Random(self._plan.seed)
        for number in range(self._plan.kills):
            seconds = moments.uniform(*self._plan.load_seconds)
            if number >= len(rounds):
                rounds.append(asyncio.run(self._life(rounds, seconds)))
                with self._file.open("a") as file:
                    file.write(rounds[-1].line())
        self._seen = Seen()  # read everything again: all messages seen before must still exist
        asyncio.run(self._last_life(rounds))
        found = [problem for one in rounds for problem in one.problems] + self._seen.problems
        problems = list(dict.fromkeys(found))  # a lasting problem is found in every round
        known = sum(len(one.acknowledged.stored) for one in rounds)
        return DurabilityResult(
            self._plan,
            rounds,
            len(self._seen.places) - known,
            problems,
            sum(path.stat().st_size for path in self._data_dir.iterdir()),
            time.monotonic() - begin,
        )

    @property
    def _data_dir(self) -> Path:
        return self._directory / "data"

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    async def _life(self, rounds: Sequence[Round], seconds: float) -> Round:
        """Start the broker, check its data, load it, and kill it."""
        with self._broker() as (process, life, ready_seconds):
            consumed = await self._check(rounds, life)
            problems, self._seen.problems = self._seen.problems, []
            load = Load(self._address, life * NUMBERS_PER_LIFE, consumed)
            running = asyncio.create_task(load.run())
            await asyncio.wait([running], timeout=seconds)
            process.kill()
            await running
        return Round(life, ready_seconds, load.acknowledged, problems)

    async def _last_life(self, rounds: Sequence[Round]) -> None:
        """Wait for the delayed messages, and stop the broker in order."""
        wanted = {number for one in rounds for number in one.acknowledged.later}
        with self._broker() as (process, life, _):
            deadline = time.monotonic() + DELIVERY_SECONDS
            await self._check(rounds, life)
            while not wanted <= self._seen.numbers.keys() and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                await self._check(rounds, life)
            process.send_signal(signal.SIGTERM)
            code = process.wait(READY_SECONDS)
        missing = wanted - self._seen.numbers.keys()
        if missing:
            self._seen.problems.append(f"{len(missing)} messages for later never came, such as {min(missing)}")
        if code != 0:
            self._seen.problems.append(f"the broker ended with {code}")

    @contextlib.contextmanager
    def _broker(self) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
        """Yield the ready broker, the number of its life, and its start time in seconds."""
        with (self._directory / "lives").open("a") as lives:  # an interrupted life counts, because it used its numbers
            lives.write("x")
            life = lives.tell()
        begin = time.monotonic()
        listen, broker_port = self._ports
        command = ["-m", "rmqd", "broker", "--listen", f"127.0.0.1:{listen}", "--broker-port", str(broker_port)]
        command += ["--data-dir", str(self._data_dir), "--topic", f"{TOPIC}:{QUEUES}", "--topic", f"{LATER}:1"]
        with (
            (self._directory / "broker.log").open("a") as errors,
            subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("nameserver:"), f"it printed {line!r}; see {self._directory / 'broker.log'}"
                yield process, life, time.monotonic() - begin
            finally:
                process.kill()

    async def _check(self, rounds: Sequence[Round], life: int) -> dict[int, int]:
        """Read on in every queue, and record missing, wrong and duplicated messages. Return the group's offsets."""
        remoting = RemotingClient()
        try:
            for queue_id in range(QUEUES):
                for message in await self._read_on(remoting, TOPIC, queue_id):
                    self._seen.places[queue_id, message.queue_offset] = self._note(message)
            for message in await self._read_on(remoting, LATER, 0):
                self._note(message)
            for one in rounds[self._seen.rounds :]:
                self._check_stored(one)
            self._seen.rounds = len(rounds)
            asked_known = bool(rounds) and rounds[-1].life == life - 1
            consumed = {}
            for queue_id in range(QUEUES):
                known = rounds[-1].acknowledged.committed[queue_id] if rounds else (0, 0)
                consumed[queue_id] = await self._check_offset(remoting, queue_id, *known, asked_known=asked_known)
            return consumed
        finally:
            await remoting.close()

    async def _read_on(self, remoting: RemotingClient, topic: str, queue_id: int) -> list[Message]:
        """Return the messages of a queue behind those read before."""
        found: list[Message] = []
        at = self._seen.at[topic, queue_id]
        while True:
            header, messages = await pull(remoting, self._address, queue(topic, queue_id), at)
            if header.max_offset < at:
                self._seen.problems.append(f"{topic}:{queue_id} ends at {header.max_offset}, and had {at} messages")
            if at >= header.max_offset:
                break
            offsets = [message.queue_offset for message in messages]
            if not messages or offsets != list(range(at, at + len(messages))):
                self._seen.problems.append(f"{topic}:{queue_id} has a gap at {at}: {offsets}")
                break
            found += messages
            at = header.next_begin_offset
        self._seen.at[topic, queue_id] = at
        return found

    def _note(self, message: Message) -> int:
        number = number_of(message)
        if number is None:
            self._seen.problems.append(f"{message!r} is not as it was sent")
            return -1
        self._seen.numbers[number] += 1
        if self._seen.numbers[number] == 2:
            self._seen.problems.append(f"the message {number} is there twice")
        return number

    def _check_stored(self, one: Round) -> None:
        places = self._seen.places
        lost = [stored for stored in one.acknowledged.stored if places.get(stored[:2]) != stored.number]
        if lost:
            self._seen.problems.append(f"{len(lost)} messages of life {one.life} are lost, such as {lost[0]}")

    async def _check_offset(
        self, remoting: RemotingClient, queue_id: int, answered: int, asked: int, *, asked_known: bool
    ) -> int:
        place = queue(TOPIC, queue_id)
        stored = await query_consumer_offset(remoting, self._address, GROUP, place) or 0
        if stored < answered or (asked_known and stored > asked):
            self._seen.problems.append(
                f"{place} is committed at {stored}: {answered} was answered, and {asked} the last asked for"
            )
        if stored > self._seen.at[TOPIC, queue_id]:
            self._seen.problems.append(f"{place} is committed at {stored}, and ends before")
        return stored


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
