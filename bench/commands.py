"""The times of rmqd's commands and their mqadmin counterparts, on a real RocketMQ with 200 topics and 50 groups."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

from bench import contenders
from bench.contest import ContestError
from bench.goals import table
from bench.scenarios import say
from rmqd.cli.app import command_line
from rmqd.client.api.group_requests import update_subscription_group
from rmqd.client.api.offset_requests import update_consumer_offset
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.runtime.logs.log_setup import configure_logging
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import dlq_topic
from tests.rocketmq import ClusterSpec, RealCluster
from tests.rocketmq.fetch import find_java, jars
from tests.rocketmq.spec import free_port

NAME = "commands"
TOPICS, QUEUES, GROUPS, TOPICS_OF_GROUP, MESSAGES = 200, 4, 50, 4, 20
START_SECONDS = 60.0
HELP_BUDGET_MS, RESULT_BUDGET_MS = 130.0, 1000.0
HELP_ROUNDS, ROUNDS, MQADMIN_ROUNDS = 3, 3, 1
GROUP, TOPIC, KEY = "bench_group_0", "bench_topic_0", "order-7"

# The mqadmin command with the same purpose, if there is one. `{...}` is filled in for each run.
QUESTIONS: dict[str, tuple[str, str]] = {
    "lag {group}": ("consumerProgress", "-g {group}"),
    "diagnose {group}": ("consumerStatus", "-g {group}"),
    "groups list": ("consumerProgress", ""),
    "groups show {group}": ("consumerConnection", "-g {group}"),
    "groups mode {group} {topic} pop --dry-run": ("", ""),
    "topics list": ("topicList", ""),
    "topics show {topic}": ("topicStatus", "-t {topic}"),
    "offsets show {group}": ("consumerProgress", "-g {group}"),
    "offsets reset {group} {topic} --to first --dry-run": ("", ""),
    "dlq list": ("topicList", ""),
    "dlq show {group}": ("", ""),
    "dlq replay {group} --dry-run": ("", ""),
    "dlq purge {group} --dry-run": ("", ""),
    "message get {id}": ("queryMsgByUniqueKey", "-t {topic} -i {id}"),
    "message trace {id}": ("queryMsgTraceById", "-i {id}"),
    "message query {topic} {key}": ("queryMsgByKey", "-t {topic} -k {key}"),
    "tail {topic} --since 1h --most 1": ("consumeMessage", "-t {topic} -c 1"),
    "send {topic} hello": ("sendMessage", "-t {topic} -p hello"),
    "check": ("", ""),
    "check --connect": ("", ""),
    "schema": ("", ""),
    "handlers": ("", ""),
    "status": ("", ""),
    "top --once": ("", ""),
    "pause {group}": ("", ""),
    "resume {group}": ("", ""),
    "reload": ("", ""),
}
# these commands run until they are stopped, run handlers, start processes, or need another command's output
UNTIMED = (
    "demo",
    "run",
    "test",
    "broker",
    "try",
    "replay",
    "restart",
    "canary",
    "offsets restore",
    "spark run",
    "spark submit",
    "spark compact",
    "spark pack",
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The medians of some runs: milliseconds of wall clock time, and of CPU time in user and system mode."""

    wall_ms: float
    cpu_ms: float
    failed: str = ""


def leaves(command: Any, *path: str) -> Iterator[str]:
    """Yield the words of each runnable command."""
    for name, one in command.commands.items():
        if not one.hidden:
            yield from leaves(one, *path, name) if hasattr(one, "commands") else [" ".join((*path, name))]


def timed(command: Sequence[str], rounds: int, environment: dict[str, str], folder: Path | None = None) -> Taken:
    """Run a command `rounds` times, each time in a new process, in a folder for its files."""
    walls, cpus, failed = [], [], ""
    # as in an installation, Python keeps its compiled files
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | environment
    for _ in range(rounds):
        begin = time.perf_counter()
        process = Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=variables, cwd=folder)
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        walls.append((time.perf_counter() - begin) * 1000)
        cpus.append((usage.ru_utime + usage.ru_stime) * 1000)
        if process.returncode:
            failed = f"exit {process.returncode}: {said.splitlines()[-1] if said else ''}"[:90]
    return Taken(statistics.median(walls), statistics.median(cpus), failed)


async def fill(nameserver: str) -> str:
    """Store messages in each topic, and offsets of groups: each group has read half of four topics.

    One group gets a dead letter. Returns the id of a message.
    """
    client = ClientInstance(ClientOptions(nameservers=(nameserver,)))
    turn = asyncio.Semaphore(16)
    msg_id = ""

    async def send(topic: str, number: int) -> str:
        async with turn:
            result = await client.producer.send(OutgoingMessage(topic, b"x" * 200, keys=f"order-{number}"))
            return result.msg_id

    try:
        topics = [f"bench_topic_{number}" for number in range(TOPICS)]
        sent = await asyncio.gather(*(send(topic, number) for topic in topics for number in range(MESSAGES)))
        await send(dlq_topic(GROUP), 0)
        msg_id = sent[7]
        broker = next(iter(client.routes.queues(TOPIC))).broker_name
        address = client.routes.address(broker)
        assert address is not None
        for number in range(GROUPS):
            group = SubscriptionGroupConfig(group_name=f"bench_group_{number}")
            await update_subscription_group(client.remoting, address, group)
            for step in range(TOPICS_OF_GROUP):
                topic = topics[(number * TOPICS_OF_GROUP + step) % TOPICS]
                for queue in range(QUEUES):
                    where = MessageQueue(topic, broker, queue)
                    await update_consumer_offset(client.remoting, address, f"bench_group_{number}", where, 2)
    finally:
        await client.remoting.close()
    return msg_id


@contextmanager
def daemon(folder: Path, nameserver: str) -> Iterator[dict[str, str]]:
    """Run a daemon with one of the groups. Yields the environment in which commands find it and the cluster."""
    config = folder / "rmqd.yaml"
    topics = ", ".join(f'bench_topic_{number}: "*"' for number in range(TOPICS_OF_GROUP))
    config.write_text(
        f"nameserver: {nameserver}\nstate_dir: {folder / 'state'}\n"
        f"http: {{listen: '127.0.0.1:{free_port(set(), (0,))}'}}\n"
        f"groups:\n  {GROUP}: {{subscriptions: {{{topics}}}, handler: {{plugin: log}}}}\n"
    )
    environment = {"RMQD_CONFIG": str(config)}
    log = (folder / "daemon.log").open("wb")
    process = Popen(
        [*contenders.rmqd(), "run"], stdin=DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
    )
    try:
        begin = time.monotonic()
        while timed([*contenders.rmqd(), "status", GROUP], 1, environment).failed:
            if time.monotonic() - begin > START_SECONDS:
                raise ContestError(f"the daemon does not answer; its log:\n{(folder / 'daemon.log').read_text()}")
        yield environment
    finally:
        process.terminate()
        process.wait()
        log.close()


def measure(topics: int = TOPICS) -> str:
    """Return the tables: the help of every command, and the results of the commands that query something."""
    configure_logging("critical", "console")
    commands = list(leaves(command_line()))
    bare = timed([sys.executable, "-c", "pass"], HELP_ROUNDS * 3, {})
    say(f"help of {len(commands)} commands")
    helps = {name: timed([*contenders.rmqd(), *name.split(), "--help"], HELP_ROUNDS, {}) for name in commands}
    say(f"starting RocketMQ, filling {topics} topics")
    with RealCluster.start(ClusterSpec(heap="1g")) as cluster, TemporaryDirectory(prefix="rmqd-bench-") as folder:
        for number in range(topics):
            cluster.create_topic(f"bench_topic_{number}", QUEUES)
        cluster.create_topic(dlq_topic(GROUP), 1)
        filled = {"group": GROUP, "topic": TOPIC, "key": KEY, "id": asyncio.run(fill(cluster.nameserver))}
        with daemon(Path(folder), cluster.nameserver) as environment:
            results = {}
            for question in (one for one in QUESTIONS if any(one.startswith(f"{name}") for name in commands)):
                say(question)
                results[question] = timed([*contenders.rmqd(), *question.format(**filled).split()], ROUNDS, environment)
            beside = {}
            for name, arguments in dict.fromkeys(QUESTIONS.values()):
                if name:
                    say(f"mqadmin {name} {arguments}")
                    beside[name, arguments] = _mqadmin(cluster, name, arguments.format(**filled).split())
    return "\n\n".join([_helps(helps, bare), _results(results, beside, commands)])


def _mqadmin(cluster: RealCluster, name: str, arguments: list[str]) -> Taken:
    program = [find_java(), f"-Drocketmq.home.dir={cluster.directory}", "-Djava.net.preferIPv4Stack=true"]
    program += ["-cp", ":".join(jars(cluster.spec.version)), "org.apache.rocketmq.tools.command.MQAdminStartup"]
    return timed([*program, name, *arguments, "-n", cluster.nameserver], MQADMIN_ROUNDS, {}, cluster.directory)


def _helps(helps: dict[str, Taken], bare: Taken) -> str:
    rows = sorted(helps.items(), key=lambda item: -item[1].cpu_ms)
    over = [name for name, taken in rows if taken.cpu_ms - bare.cpu_ms > HELP_BUDGET_MS]
    more = [taken.wall_ms - bare.wall_ms for _, taken in rows]
    cpu = [taken.cpu_ms - bare.cpu_ms for _, taken in rows]
    return (
        f"`--help` of {len(rows)} commands takes {statistics.median(more):.0f} ms more than `python -c pass` "
        f"({bare.wall_ms:.0f} ms) by the median, {max(more):.0f} at most; in CPU time {statistics.median(cpu):.0f} and "
        f"{max(cpu):.0f} ms more. Over {HELP_BUDGET_MS:.0f} ms of CPU: {', '.join(over) or 'none'}"
    )


def _results(results: dict[str, Taken], beside: dict[tuple[str, str], Taken], commands: list[str]) -> str:
    rows = []
    for question, taken in results.items():
        name, arguments = QUESTIONS[question]
        other = beside.get((name, arguments))
        rows.append(
            (
                f"rmqd {question}".replace("{", "").replace("}", ""),
                f"{taken.wall_ms:,.0f}",
                f"{taken.cpu_ms:,.0f}",
                f"mqadmin {name}" if other else "",
                f"{other.wall_ms:,.0f}" if other else "",
                f"{other.cpu_ms:,.0f}" if other else "",
                taken.failed or ("" if taken.wall_ms <= RESULT_BUDGET_MS else "over a second"),
            )
        )
    left_out = [name for name in commands if not any(one.startswith(name) for one in results) and name not in UNTIMED]
    note = f"\n\nNot in the list: {', '.join(left_out)}" if left_out else ""
    return table(("command", "ms", "CPU ms", "mqadmin", "its ms", "its CPU ms", ""), rows) + note
