"""Handle a paced topic's messages with as little code as an event loop permits: no task, no future, no deadline.

A protocol decodes each response with rmqd's own decoders, and sends the next pull in the callback that received it.
The rest of rmqd's CPU time is the cost of its pull loops, caches, workers and commits.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import cast

import uvloop

from bench import process_figures
from bench.handler import STAMP_DIGITS
from bench.raw_puller import FOUND, PullRequest, argument_parser, find_queues
from rmqd.wire.command import FrameDecoder, decode_command
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages


class Floor(asyncio.Protocol):
    """Pulls all queues of a topic on one broker, and records each message's age until `ended`."""

    def __init__(self, topic: str, requests: list[PullRequest], messages: int, warm: int) -> None:
        self.ended = asyncio.Event()
        self.delays_us: list[int] = []
        self.moments: list[process_figures.Moment] = []
        """The arrival of the first message, of the first after the warm ones, and of the last."""
        self._requests = requests
        self._queues = [MessageQueue(topic, "", queue) for queue in range(len(requests))]
        self._messages = messages
        self._warm = warm
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.writelines(request.at(0) for request in self._requests)

    def data_received(self, data: bytes) -> None:
        for payload in self._decoder.feed(data):
            reply = decode_command(payload)
            header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
            if reply.code == FOUND:
                block = frame_messages(reply.payload, self._queues[reply.opaque], reply.body_start, "", 0)
                now_us = time.time_ns() // 1000
                self.delays_us += [now_us - int(message.body[:STAMP_DIGITS]) for message in block.messages]
                self._mark()
            self._transport.write(self._requests[reply.opaque].at(header.next_begin_offset))

    def _mark(self) -> None:
        seen, marks = len(self.delays_us), (1, self._warm + 1, self._messages)
        if len(self.moments) < len(marks) and seen >= marks[len(self.moments)]:
            self.moments.append(process_figures.now())
            if len(self.moments) == 1:
                print(process_figures.STARTED, flush=True)
            if len(self.moments) == len(marks):
                self.ended.set()


async def run(options: argparse.Namespace) -> None:
    """Handle the messages, and print one line of figures."""
    ((address, queues),) = find_queues(options.namesrv, options.topic).items()
    requests = [PullRequest.of(options.group, options.topic, queue, options.pull_batch) for queue in range(queues)]
    floor = Floor(options.topic, requests, options.messages, options.warm)
    host, _, port = address.rpartition(":")
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: floor, host, int(port))
    await floor.ended.wait()
    transport.abort()
    delays_us = floor.delays_us[options.warm :]
    first, marked, last = floor.moments
    print(process_figures.line("floor", len(floor.delays_us), first, marked, last, options.warm, delays_us), flush=True)


def main() -> None:
    """Run the contender."""
    parser = argument_parser("floor", __doc__)
    parser.add_argument("--warm", type=int, default=0, help="messages at the start that do not count")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
