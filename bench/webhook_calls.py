"""The cost of a `webhook` call by the number of calls in flight: `python -m bench.webhook_calls PORT [IN_FLIGHT...]`.

The server is `python -m bench.knee_server PORT 1000 100` in a separate process. A call takes 100 ms. The event loop is
uvloop.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from rmqd.testing import make_batch, make_message
from rmqd_handlers.webhook import Webhook

ROUNDS = 20


async def main(port: int, under_way: int) -> None:
    """Print calls a second and CPU time per call, without the first call of each connection."""
    options = {"url": f"http://127.0.0.1:{port}/", "max_connections": 300}
    handler = Webhook(Webhook.Options.model_validate(options))
    await handler.start()

    async def calls(place: int, count: int) -> None:
        await asyncio.sleep(0.1 * place / under_way)  # spread like arriving messages
        for _ in range(count):
            await handler.handle(make_batch(make_message(b"{}")))

    async def all_at_once(count: int) -> None:
        await asyncio.gather(*(calls(place, count) for place in range(under_way)))

    await all_at_once(1)
    began, cpu = time.monotonic(), time.process_time()
    await all_at_once(ROUNDS)
    seconds, cpu, count = time.monotonic() - began, time.process_time() - cpu, ROUNDS * under_way
    print(f"{under_way} in flight: {count / seconds:.1f} calls/s, {cpu / count * 1000:.2f} ms CPU per call", flush=True)
    await handler.stop()


if __name__ == "__main__":
    for number in sys.argv[2:] or ("1", "4", "16", "64"):
        uvloop.run(main(int(sys.argv[1]), int(number)))
