"""A program with a SyncPullConsumer: it writes a ledger and commits after each poll. SIGTERM stops it gracefully."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from rmqd import Message, SyncPullConsumer
from tests.rocketmq.ledger import FINISH, START, Entry

HANDLE_SECONDS = 0.002


def main(nameserver: str, topic: str, group: str, ledger: str, name: str) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))

    def note(event: str, message: Message) -> None:
        place = message.broker_name, message.queue_id, message.queue_offset
        entry = Entry(event, message.keys or "", *place, name, time.time_ns() // 1000, message.reconsume_times)
        file.write(entry.line().encode())

    with Path(ledger).open("ab", buffering=0) as file, SyncPullConsumer(group, nameserver=nameserver) as consumer:
        consumer.subscribe(topic)
        print("started", flush=True)
        while not ended:
            for message in consumer.poll(timeout=0.5):
                note(START, message)
                time.sleep(HANDLE_SECONDS)
                note(FINISH, message)
            consumer.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
