"""The event loop of a simulation: time jumps to the next timer, and each callback belongs to a host."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

from rmqd.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tests.simulation.network import Network

WALL_SECONDS: Final = 1_700_000_000.0
START_SECONDS: Final = 1000.0
MAX_TURNS: Final = 200_000
"""The number of loop iterations without progress of time that counts as spinning."""

_HOST: ContextVar[Host | None] = ContextVar("host", default=None)


def running_host() -> Host | None:
    """Return the host whose callback runs."""
    return _HOST.get()


class Spinning(AssertionError):
    """The loop runs callbacks forever, without waiting for anything."""


class _Task(asyncio.Task[Any]):
    """A task with a stable hash, so that a TaskGroup's set of tasks has the same order in every run."""

    def __init__(self, coro: Any, *, loop: SimulatedLoop, **options: Any) -> None:
        self.number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """A future with a stable hash."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class Host:
    """A separate machine or process. Everything that it starts stops with it, including timers and callbacks.

    A paused host does nothing, like a suspended process: its callbacks run when it resumes. The callbacks of a killed
    host are kept until the end of the history; otherwise its tasks could not be ended.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self._loop = loop
        self._held: deque[asyncio.Handle] = deque()
        self._context = copy_context()
        self._context.run(_HOST.set, self)
        loop.hosts.append(self)

    def __repr__(self) -> str:
        return f"<Host {self.name}>"

    @property
    def context(self) -> Context:
        """A context whose callbacks belong to this host."""
        return self._context.copy()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run a coroutine on this host."""
        return self._loop.create_task(work, name=name or self.name, context=self.context)

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue, first with the postponed callbacks."""
        self.is_paused = False
        self._loop.ready.extend(self._held)
        self._held.clear()

    def kill(self) -> None:
        """End everything at once, as SIGKILL does."""
        self.is_dead = True
        self._loop.network.end(self)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until the host resumes. Called by the loop."""
        self._held.append(handle)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs ready callbacks in their order, and lets time jump if none is ready.

    Work for other threads (`run_in_executor`) runs at once, in the loop itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 1e-9
        self.now = START_SECONDS
        self.hosts: list[Host] = []
        self.numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **options: _Task(coro, loop=self, **options))
        self.network: Network
        self.turns = 0
        """The number of callbacks that have run."""
        self._still = 0

    @property
    def ready(self) -> deque[asyncio.Handle]:
        """The callbacks of the next iteration."""
        return self._ready  # type: ignore[attr-defined, no-any-return]

    def time(self) -> float:
        """The simulated seconds."""
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this history."""
        return _Future(loop=self)

    def end(self) -> None:
        """Cancel and finish all remaining tasks, including those of killed hosts, and close the loop."""
        for host in self.hosts:
            host.is_dead = False
            host.resume()
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        for task in tasks:
            task.cancel()
        self.set_exception_handler(lambda *_: None)
        self._still = 0
        with contextlib.suppress(Spinning):
            self.run_until_complete(asyncio.wait(tasks, timeout=1000.0) if tasks else asyncio.sleep(0))
        self.close()

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if ready:
            self._still += 1
            if self._still > MAX_TURNS:
                raise Spinning(f"{MAX_TURNS} turns of the loop at {self.now:.3f} s")
        elif not scheduled:
            raise RuntimeError("everybody waits, and nothing will come")
        else:
            self._still = 0
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle._context.get(_HOST)
            if host is not None and (host.is_paused or host.is_dead):
                host.hold(handle)
                continue
            self.turns += 1
            handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave the handle in the heap until its time: histories are short."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread uses this loop."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(_HOST.get(), protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(_HOST.get(), protocol_factory, str(host), int(port))

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port or 0)))]


class LoopClock(SystemClock):
    """The clock of all hosts in a simulation."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return WALL_SECONDS + asyncio.get_running_loop().time() - START_SECONDS

    @staticmethod
    def call_at(monotonic: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(monotonic, callback, *args)
