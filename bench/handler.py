"""The benchmark's handlers for rmqd.

`Drain` and `Delays` count messages, and print one line of figures after the last one. `Delays` also records each
message's age. `Nothing` and `Ages` are for Spark, where each of several processes has a handler.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from struct import Struct
from typing import Any

from bench import process_figures

STAMP_DIGITS = 16  # a body starts with its birth time: microseconds since 1970, in 16 digits
AGE = Struct("<qq")  # a record of `Ages`: a message's birth and age, in microseconds


class Drain:
    """Counts messages."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._messages = int(options["messages"])
        self._seen = 0
        self._next_mark = 1
        self._first: process_figures.Moment | None = None
        self._sampler: Any = None
        self._sample_file = Path(options["sample_file"]) if options.get("sample_file") else None

    async def handle(self, batch: Any) -> None:
        """Count the batch. Reads the clock twice in a run."""
        self._seen += len(batch)
        if self._seen >= self._next_mark:
            self._reach_mark()

    def _reach_mark(self) -> None:
        moment = process_figures.now()
        if self._first is None:
            self._first = moment
            self._next_mark = self._messages
            self._sample()
        if self._seen >= self._messages:
            self._next_mark = sys.maxsize
            if self._sampler is not None and self._sample_file is not None:
                self._sampler.stop()
                self._sampler.write(self._sample_file)
            print(process_figures.line("rmqd", self._seen, self._first, self._first, moment, 0), flush=True)

    def _sample(self) -> None:
        if self._sample_file is not None:
            from bench.sampling import Sampler  # only if sampling, so that its import does not slow down other starts

            self._sampler = Sampler()
            self._sampler.start()


class Delays:
    """Records each message's age in microseconds, from the timestamp in its body, without the first `warm` messages."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._messages = int(options["messages"])
        self._warm = int(options["warm"])
        self._delays_us: list[int] = []
        self._first: process_figures.Moment | None = None
        self._marked: process_figures.Moment | None = None
        self._done = False

    async def handle(self, batch: Any) -> None:
        """Record the age of each message."""
        now_us = time.time_ns() // 1000
        delays = self._delays_us
        for message in batch:
            delays.append(now_us - int(message.body[:STAMP_DIGITS]))
        if self._marked is None or len(delays) >= self._messages:
            self._reach_mark()

    def _reach_mark(self) -> None:
        moment = process_figures.now()
        seen = len(self._delays_us)
        if self._first is None:
            self._first = moment
            print(process_figures.STARTED, flush=True)
        if self._marked is None and seen > self._warm:
            self._marked = moment
        if seen >= self._messages and self._marked is not None and not self._done:
            self._done = True
            text = process_figures.line(
                "rmqd", seen, self._first, self._marked, moment, self._warm, self._delays_us[self._warm :]
            )
            print(text, flush=True)


class Nothing:
    """Does nothing."""

    async def handle(self, batch: Any) -> None:
        """Do nothing."""


class Ages:
    """Writes each message's birth (since 1970) and age, both in microseconds, to a file of its process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._path = Path(options["folder"]) / str(os.getpid())

    async def start(self) -> None:
        """Open the file. It stays open, because Spark ends the process without notice."""
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(self, batch: Any) -> None:
        """Write immediately, because the handler does not know which message is the last."""
        now_us = time.time_ns() // 1000
        births = [int(message.body[:STAMP_DIGITS]) for message in batch]
        os.write(self._file, b"".join(AGE.pack(birth, now_us - birth) for birth in births))
