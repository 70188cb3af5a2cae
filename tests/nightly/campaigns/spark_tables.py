"""Tables: pipelines from YAML drain topics of JSON into PostgreSQL, while rmqd and PostgreSQL are killed -9.

The first group adds a row for every message, with the reason if its body is bad. The next group keeps the last row of
each order. The third follows the changes of a table, including deletions and changed keys, with `cdc`. Each kill has a
moment: while Spark starts, at any time, in a copy, in the sink's transaction, or just after it, before the checkpoint
has the batch. Most kills hit the daemon and all its child processes. Others hit the daemon alone, so that its driver
and the next one run at the same time. In the end the tables must match the sent messages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.campaigns.sending import send_at_least_once
from tests.nightly.campaigns.tables_changes import CHANGES, Source, copy_differences, source_of
from tests.nightly.campaigns.tables_moments import MOMENTS, STARTING, Moments
from tests.nightly.campaigns.tables_truth import VALUE_SCHEMA, body_of, differences, truth_of
from tests.rocketmq import RealCluster, offsets
from tests.servers.postgresql import PostgresqlServer
from tests.spark.fixtures import SHORT_LIFE
from tests.waiting import wait_until

ADDING, KEEPING, FOLLOWING = "tables-adding", "tables-keeping", "tables-following"
TABLES: Final = {ADDING: "changes", KEEPING: "orders", FOLLOWING: "copies"}
COLUMNS: Final = "id bigint, amount numeric(12, 2), state text, version bigint"
CREATED: Final = {
    ADDING: f"CREATE TABLE IF NOT EXISTS changes (queue int, place bigint, key text, {COLUMNS}, why text)",
    KEEPING: f"CREATE TABLE IF NOT EXISTS orders ({COLUMNS}, PRIMARY KEY (id))",
    FOLLOWING: f"CREATE TABLE IF NOT EXISTS copies ({COLUMNS}, _order bigint[], PRIMARY KEY (id))",
}
PIPELINES: Final[Mapping[str, Mapping[str, Any]]] = {
    ADDING: {
        "plugin": "select",
        "options": {
            "columns": ["queue_id AS queue", "queue_offset AS place", "keys AS key", "value.*", "_bad_row AS why"]
        },
    },
    KEEPING: {"plugin": "select", "options": {"columns": ["value.*"], "where": "_bad_row IS NULL"}},
    FOLLOWING: {"plugin": "cdc", "options": CHANGES},
}
BY_KEY: Final[Mapping[str, Mapping[str, Any]]] = {
    ADDING: {},
    KEEPING: {"keys": ["id"], "order_by": ["version"]},
    FOLLOWING: {"keys": ["id"], "order_by": ["_order"], "delete_column": "_deleted"},
}
DELETED: Final = "SELECT id FROM rmqd_deleted_copies"
DIFFERENCES: Final = ("missing", "twice", "wrong", "not the last", "not as the source")
QUEUES: Final = 4
QUICK_START: Final = {"spark.driver.extraJavaOptions": SHORT_LIFE}  # the group starts many times
ALL, ALONE, DATABASE = "all", "daemon alone", "database"
BEGIN_SECONDS: Final = 600.0  # Spark starts in 10 s, and in minutes on a busy machine
DRAIN_SECONDS: Final = 600.0
AWAY_SECONDS: Final = (0.0, 4.0)


@dataclass(frozen=True, slots=True)
class Kill:
    """The victim, and the moment of a group at which it is killed."""

    who: str
    moment: str
    group: str

    def __str__(self) -> str:
        """The line in the file of kills."""
        return f"{self.who}, {self.moment}, {self.group}"


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """A run: the number of messages, and of kills of rmqd and the database."""

    seed: int
    messages: int
    kills: int
    database_kills: int
    batch: int = 500
    groups: Sequence[str] = (ADDING, KEEPING, FOLLOWING)
    moments: Sequence[str] = MOMENTS

    def all_kills(self) -> list[Kill]:
        """Return the kills by group: moments equally often, one in five of the daemon alone, some of the database."""
        chance = random.Random(self.seed)
        moments = itertools.cycle(chance.sample(self.moments, len(self.moments)))
        groups = itertools.cycle(self.groups)
        rounds = [divmod(number, len(self.groups)) for number in range(self.kills)]
        who = [ALONE if turn % 5 == place + 1 else ALL for turn, place in rounds]
        kills = [Kill(one, next(moments), next(groups)) for one in who]
        running = [moment for moment in self.moments if moment != STARTING]
        for _ in range(self.database_kills):
            kills.insert(chance.randrange(len(kills)), Kill(DATABASE, chance.choice(running), next(groups)))
        return sorted(kills, key=lambda kill: self.groups.index(kill.group))


@dataclass(frozen=True, slots=True)
class TablesResult:
    """The result of a run."""

    plan: TablesPlan
    killed: list[str]
    rows: Mapping[str, int]
    """The number of rows of each table."""
    bad: int
    """The number of messages with bad bodies."""
    differences: list[tuple[str, str]]
    stagings: int
    lag: Mapping[str, int]
    seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the tables are correct, all is committed, and each kill of the plan was done."""
        wrong = self.differences or self.problems or any(self.lag.values())
        return not wrong and len(self.killed) == len(self.plan.all_kills()) and self.stagings <= len(self.plan.groups)

    @property
    def counts(self) -> Counter[str]:
        """The number of kills by victim."""
        return Counter(what.partition(",")[0] for what in self.killed)

    def report(self) -> str:
        counts = ", ".join(f"{count} {who}" for who, count in sorted(self.counts.items()))
        kinds = Counter(kind for kind, _ in self.differences)
        lines = [
            f"spark_tables, seed {self.plan.seed}, {self.seconds:.0f} s: {self.plan.messages} messages, "
            f"{self.bad} of them bad; killed {counts}",
            f"rows {dict(self.rows)}; differences from the truth {len(self.differences)} {dict(kinds) or ''}",
            f"not committed at the end {dict(self.lag)}; staging tables left {self.stagings}",
        ]
        shown = [f"{kind}: {what}" for kind, what in self.differences[:5]] + self.problems[:5]
        return "\n".join([*lines, *(f"  {text}" for text in shown)])

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md."""
        kinds = Counter(kind for kind, _ in self.differences)
        at = Counter(what.split(", ")[1] for what in self.killed if not what.startswith(DATABASE))
        return [
            self.plan.seed,
            self.plan.messages,
            ", ".join(str(self.counts[who]) for who in (ALL, ALONE, DATABASE)),
            ", ".join(f"{at[moment]} {moment}" for moment in self.plan.moments),
            ", ".join(str(self.rows.get(table, "")) for table in TABLES.values()),
            self.bad,
            ", ".join(str(kinds[kind]) for kind in DIFFERENCES),
            f"{self.seconds:.0f}",
            "; ".join(self.problems) or "none",
        ]


class Tables:
    """One run in a directory. A new start with the same directory continues with the remaining kills."""

    def __init__(self, plan: TablesPlan, cluster: RealCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._cluster = cluster
        self._directory = directory.absolute()
        self._directory.chmod(0o711)  # as root, the database runs as another user
        self._killed = self._directory / "killed"
        self._server = PostgresqlServer(self._directory / "postgresql")
        self._url = self._server.url("postgres")
        self._moments = Moments(self._url, random.Random(f"{plan.seed} moments {len(self._killed_so_far())}"))

    def run(self) -> TablesResult:
        """Send all messages, drain them during the kills, and judge."""
        begin = time.monotonic()
        topics = {group: self._sent_topic(group) for group in self._plan.groups}
        problems: list[str] = []
        with self._server:
            for group, topic in topics.items():
                self._server.execute(self._url, CREATED[group])
                problems += self._drained_under_fire(group, topic)
            return self._result(topics, problems, time.monotonic() - begin)

    def _drained_under_fire(self, group: str, topic: str) -> Iterator[str]:
        """Let a group drain its topic during its kills. Yield the problems."""
        kills = [kill for kill in self._plan.all_kills()[len(self._killed_so_far()) :] if kill.group == group]
        with RmqdProcess(self._directory / group, self._cluster.nameserver, self._config(group, topic)) as daemon:
            for kill in kills:
                if not self._is_killed(kill, daemon, topic):
                    yield f"{group} had drained all before everybody had been killed"
                    break
            with contextlib.suppress(AssertionError):  # the table shows missing rows
                wait_until(lambda: self._lag(group, topic) == 0, "all is written and committed", DRAIN_SECONDS)
            status, _ = daemon.terminate(60)
            if status:
                yield f"rmqd ended with {status}"

    def _sent_topic(self, group: str) -> str:
        """Return the group's topic with all messages. An incomplete topic of an interrupted run is not used."""
        plan, is_following = self._plan, group == FOLLOWING
        done = self._directory / ("topic-of-changes" if is_following else "topic")
        if not done.exists():
            topic = f"tables-{time.time_ns() // 1_000_000}"
            self._cluster.create_topic(topic, QUEUES)
            changes = self._source.bodies if is_following else ()
            send_at_least_once(
                self._cluster.nameserver,
                topic,
                plan.messages,
                lambda number: changes[number] if is_following else body_of(plan.seed, number, plan.messages),
            )
            done.write_text(topic)
        return done.read_text()

    @functools.cached_property
    def _source(self) -> Source:
        return source_of(self._plan.seed, self._plan.messages)

    def _config(self, group: str, topic: str) -> dict[str, dict[str, Any]]:
        values = {"options": {"value": "json", "valueSchema": VALUE_SCHEMA}}
        settings = {
            "engine": "spark",
            "subscriptions": {topic: "*"},
            "consume_from_where": "first_offset",
            "spark": {
                "master": "local[2,4]",
                "conf": QUICK_START,
                "max_offsets_per_trigger": self._plan.batch,
                **({} if group == FOLLOWING else values),
            },
            "pipeline": PIPELINES[group],
            "sink": {"format": "postgresql", "url": self._url, "table": TABLES[group], **BY_KEY[group]},
        }
        return {group: settings}

    # --- killing

    def _is_killed(self, kill: Kill, daemon: RmqdProcess, topic: str) -> bool:
        """Wait for the moment, and kill. Return False if all messages are drained."""
        if kill.moment != STARTING:
            self._await_progress(kill.group, daemon, topic)
        if self._lag(kill.group, topic) == 0:
            return False
        with self._moments.at(kill.moment, kill.group, TABLES[kill.group]):
            if kill.who == DATABASE:
                self._server.kill()
            else:
                if kill.who == ALL:
                    kill_tree(daemon.pid)
                daemon.kill()
        with self._killed.open("a") as file:
            file.write(f"{kill}\n")
        if kill.who == DATABASE:
            time.sleep(random.Random(str(kill)).uniform(*AWAY_SECONDS))
            self._server.start()
        else:
            daemon.start()
        return True

    def _await_progress(self, group: str, daemon: RmqdProcess, topic: str) -> None:
        """Wait until the group has written another batch, or has drained its topic."""
        before = self._moments.written_at(group)

        def has_moved() -> bool:
            assert daemon.running, daemon.tail()
            return self._moments.written_at(group) != before or self._lag(group, topic) == 0

        wait_until(has_moved, f"{group} has gone on", BEGIN_SECONDS)

    def _killed_so_far(self) -> list[str]:
        return self._killed.read_text().splitlines() if self._killed.exists() else []

    # --- the end

    def _lag(self, group: str, topic: str) -> int:
        return offsets.lag(self._cluster, group, topic)

    def _result(self, topics: Mapping[str, str], problems: list[str], seconds: float) -> TablesResult:
        there = {group: self._rows(f"SELECT * FROM {TABLES[group]}") for group in topics}
        return TablesResult(
            plan=self._plan,
            killed=self._killed_so_far(),
            rows={TABLES[group]: len(rows) for group, rows in there.items()},
            bad=len(truth_of(self._plan.seed, self._plan.messages).bad),
            differences=list(self._differences(topics, there)),
            stagings=len(self._rows("SELECT 1 FROM pg_tables WHERE tablename LIKE 'rmqd_staged%'")),
            lag={group: self._lag(group, topic) for group, topic in topics.items()},
            seconds=seconds,
            problems=problems,
        )

    def _differences(
        self, topics: Mapping[str, str], there: Mapping[str, list[tuple[Any, ...]]]
    ) -> Iterator[tuple[str, str]]:
        truth = truth_of(self._plan.seed, self._plan.messages)
        ends: dict[int, int] = {}
        if ADDING in topics:
            stored = offsets.stored(self._cluster, topics[ADDING])
            ends = {queue.queue_id: end for queue, end in stored.items()}
        yield from differences(truth, ends, there.get(ADDING), there.get(KEEPING))
        if FOLLOWING in there:
            yield from copy_differences(self._source, there[FOLLOWING], self._rows(DELETED))

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.execute(self._url, statement)


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants with -9, in any process group."""
    pids = [pid, *_descendants(pid)]
    for one in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has ended
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield int(child)
                yield from _descendants(int(child))
