"""docs/demo.svg from a real run of the demo: `python -m tests.nightly.docs.demo_picture` writes it."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Final

from rmqd.runtime.logs import log_setup as logs

# isort: split

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from rmqd.broker.embedded_rocketmq import embedded_rocketmq
from rmqd.demo.demo_orders import DemoOptions
from rmqd.demo.demo_play import END_HINT, DemoGroup, demo_broker, read_group
from rmqd.demo.demo_screen import LiveScreen
from rmqd.demo.demo_view import DemoFigures, DemoSetup, ScreenSize, render_frame
from rmqd.runtime.clock import SystemClock

PICTURE: Final = Path(__file__).parents[3] / "docs" / "demo.svg"
SECONDS: Final = 34.0  # past the second burst
SIZE: Final = ScreenSize(126, 28)
THEME: Final = TerminalTheme(
    (24, 26, 31), (214, 217, 222),
    [(24, 26, 31), (224, 91, 91), (78, 190, 118), (214, 168, 72), (98, 150, 224), (198, 110, 200), (72, 178, 204),
     (214, 217, 222)],
)  # fmt: skip


async def last_figures() -> tuple[DemoSetup, DemoFigures]:
    """The demo's setup and figures after SECONDS."""
    config = read_group(DemoOptions())
    async with embedded_rocketmq(demo_broker(["orders"])) as rocketmq:
        stage = DemoGroup(rocketmq, config, SystemClock(), seed=7, messages=None)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stage.groups.run())
            sending = tasks.create_task(stage.producer.run())
            for _ in range(round(SECONDS / LiveScreen.interval_seconds)):
                figures = stage.current_figures()
                await asyncio.sleep(LiveScreen.interval_seconds)
            stage.producer.stop()
            await sending
            stage.groups.stop()
            await running
            await stage.read_end_and_close()
        return DemoSetup(stage.group, rocketmq.nameserver, ""), figures


def main() -> None:
    """Write the picture."""
    logs.configure_logging("critical", "console")
    setting, figures = asyncio.run(last_figures())
    console = Console(file=io.StringIO(), record=True, width=SIZE.width, height=SIZE.height, force_terminal=True)
    console.print(render_frame(setting, figures, END_HINT, SIZE))
    svg = console.export_svg(title="rmqd demo", theme=THEME, unique_id="demo")
    PICTURE.write_text(without_fonts(svg))


def without_fonts(svg: str) -> str:
    """Remove web fonts: an image in a page cannot load them, and the reader's monospaced font suffices."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    main()
