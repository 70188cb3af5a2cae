"""Generated cases of allocation, and the results of Java's own classes.

`python -m tests.nightly.consumer.generated_cases` writes the small ones with Java's results to
tests/consumer/allocations.txt.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rmqd.consumer.allocate import sorted_client_ids
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.allocate_cases import RECORDED, RECORDED_OTHERS, RECORDED_SHARES, STRATEGIES, Answer, Case
from tests.rocketmq import programs

RECORDED_CLIENTS = 9
SEED = 1
ROOMS = ("east", "west", "north")
BROKERS = ("broker-a", "broker-b", "b", "east@a", "east@b", "west@a", "north@a", "@a", "east@", "east@a@b", "east@a@")
NAMES = ("c1", "c2", "DEFAULT", "4711#1234567890", "east@1", "east@2", "west@1", "north@é", "@", "\uffff", "\U0001f600")


def generated(strategy: str, seed: int, number: int) -> list[Case]:
    """Random cases: usual ones, and edge cases (no queue, no member, an unknown member, more members than queues)."""
    choose = random.Random(f"{strategy} {seed}")
    return [_case(strategy, choose) for _ in range(number)]


def java_answers(cases: Iterable[Case]) -> list[Answer]:
    """The results of Java's classes in the order of the cases; None if Java throws IllegalArgumentException."""
    options = ["-Dfile.encoding=UTF-8", f"-Drmq.logback.configurationFile={programs.LOGBACK}"]
    done = subprocess.run(
        programs.command("Allocate", options, "192m"),
        input="".join(f"{_asked(case)}\n" for case in cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [_answer(json.loads(line)) for line in done.stdout.splitlines()]


def record() -> None:
    """Record the file again from Java's results: for each strategy some cases with a share, and some without."""
    lines = []
    for strategy in STRATEGIES:
        cases = [case for case in generated(strategy, SEED, 500) if len(case.clients) <= RECORDED_CLIENTS]
        pairs = list(zip(cases, java_answers(cases), strict=True))
        lines += [_line(*pair) for pair in pairs if pair[1]][:RECORDED_SHARES]
        lines += [_line(*pair) for pair in pairs if not pair[1]][:RECORDED_OTHERS]
    RECORDED.write_text("".join(f"{line}\n" for line in lines))


def _asked(case: Case) -> str:
    """The case as the Java program reads it, a line of ASCII."""
    document = {
        "strategy": case.strategy,
        "client": case.client,
        "queues": [_fields(queue) for queue in case.queues],
        "clients": case.clients,
        "allocated": [_fields(queue) for queue in case.allocated],
        "rooms": case.rooms,
    }
    return json.dumps(document, separators=(",", ":"))


def _line(case: Case, answer: Answer) -> str:
    """A short form: the number of queues of each broker, and other queues by their index among them."""
    counts = Counter(queue.broker_name for queue in case.queues)
    topic = case.queues[0].topic if case.queues else ""
    allocated = [case.queues.index(queue) for queue in case.allocated]
    own = [case.queues.index(queue) for queue in answer] if answer is not None else None
    parts = [case.strategy, case.client, topic, counts, case.clients, allocated, case.rooms, own]
    return json.dumps(parts, separators=(",", ":"))


def _answer(document: Any) -> Answer:
    return [MessageQueue(*queue) for queue in document] if isinstance(document, list) else None


def _fields(queue: MessageQueue) -> list[object]:
    return [queue.topic, queue.broker_name, queue.queue_id]


def _case(strategy: str, choose: random.Random) -> Case:
    usual = choose.random() < 0.7
    in_rooms = strategy.startswith(("by_machine", "machine")) and usual
    brokers = [name for name in BROKERS if not in_rooms or (name.count("@") == 1 and name[-1] != "@" != name[0])]
    names = [name for name in NAMES if not in_rooms or "@" in name[1:]]
    topic = choose.choice(["T", "order-events", "%RETRY%group"])
    queues = {
        MessageQueue(topic, broker, number)
        for broker in choose.sample(brokers, choose.randint(1 if usual else 0, 3))
        for number in range(choose.choice([1, 4, 8, 16]))
    }
    clients = {
        f"10.0.{choose.randint(0, 9)}.{number}@{choose.choice(names)}"
        for number in range(choose.randint(1 if usual else 0, choose.choice([3, 12, 40])))
    }
    stranger = not clients or choose.random() < 0.05
    return Case(
        strategy,
        "10.9.9.9@east@stranger" if stranger else choose.choice(sorted(clients)),
        tuple(sorted(queues)),
        tuple(sorted_client_ids(list(clients))),
        tuple(sorted(choose.sample(sorted(queues), choose.randint(0, len(queues))))) if strategy == "by_config" else (),
        tuple(sorted(choose.sample(ROOMS, choose.randint(1 if usual else 0, 3))))
        if strategy == "by_machine_room"
        else (),
    )


if __name__ == "__main__":
    record()
