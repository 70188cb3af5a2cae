"""A handler that a file controls; its plugin name is `tests.nightly.deploy.switched_handler:SwitchedHandler`."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from pydantic import BaseModel

from rmqd import Batch, DeadLetter

LOOK_SECONDS = 0.1
SLOW_SECONDS = 0.3
BLOCK_SECONDS = 0.25
BREATH_SECONDS = 0.15  # at most; a steady pace could always miss the measured timer


class SwitchedHandler:
    """Reads the file before each batch. Without it, messages are acknowledged."""

    class Options(BaseModel):
        """`switch` is the file; its text is one of broken (at the start), fail, dead_letter, slow, hang, block."""

        switch: Path

    def __init__(self, options: Options) -> None:
        self._switch = options.switch

    def start(self) -> None:
        """Raises RuntimeError while the switch says broken."""
        if self._says() == "broken":
            raise RuntimeError("the switch says broken")

    async def handle(self, batch: Batch) -> None:
        """Follow the present text of the switch."""
        match self._says():
            case "fail":
                raise ValueError("the switch says fail")
            case "dead_letter":
                raise DeadLetter("the switch says dead_letter")
            case "slow":
                await asyncio.sleep(SLOW_SECONDS)
            case "hang":
                while self._says() == "hang":  # noqa: ASYNC110  it is a file that changes
                    await asyncio.sleep(LOOK_SECONDS)
            case "block":
                time.sleep(BLOCK_SECONDS)  # noqa: ASYNC251  the fault itself
                await asyncio.sleep(random.uniform(0, BREATH_SECONDS))

    def _says(self) -> str:
        return self._switch.read_text() if self._switch.exists() else ""
