"""The main program of the process that tries a handler: `python -m rmqd.trying.handler_main DESCRIPTOR`.

It serves the parent over an inherited socket, one request after the other. The handler's output is sent to standard
error, because the parent's standard output contains only the command's results.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from rmqd.exit_codes import ExitCode
from rmqd.plain_text import describe
from rmqd.process.channel import ChildAnswer, ChildChannel, Request
from rmqd.process.logs import logs
from rmqd.process.loop import leave, run_in_loop
from rmqd.process.watched_child import NotUsable, answer_not_usable, first_order
from rmqd.trying.calls import HandlerCalls
from rmqd.trying.order import HandlerOrder, Ready


def main(descriptor: int) -> int:
    """Serve the parent until it requests a stop or ends. Returns the exit code."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return run_in_loop(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> int:
    channel = await ChildChannel.over(sock)
    first = await first_order(channel, HandlerOrder)
    if first is None:
        return ExitCode.USAGE
    number, order = first
    log = order.config.log
    logs.configure_logging(log.level, log.format, namespaces=order.config.namespaces)
    (group,) = order.config.groups
    try:
        calls = HandlerCalls(order.config, group)
        await calls.start()
    except Exception as error:  # noqa: BLE001  any exception of the handler
        await answer_not_usable(channel, number, error)
        return ExitCode.FAILURE
    channel.post(ChildAnswer(number, Ready(calls.author)))
    return await _answer(channel, calls)


async def _answer(channel: ChildChannel, calls: HandlerCalls) -> int:
    while (request := await channel.receive()) is not None:
        assert isinstance(request, Request)
        value: object = None
        try:
            if request.action == "call":
                value = await calls.call(request.argument)
            else:
                await calls.stop()
        except Exception as error:  # noqa: BLE001  an exception of `stop`, or of a handler that cannot run
            value = NotUsable(describe(error))
        channel.post(ChildAnswer(request.number, value))
        if request.action != "call":
            break
    await channel.close()
    return ExitCode.OK


if __name__ == "__main__":
    leave(main(int(sys.argv[1])))
