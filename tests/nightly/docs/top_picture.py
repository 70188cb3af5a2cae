"""docs/top.svg from a recorded status: `python -m tests.nightly.docs.top_picture` writes it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Final

from rich.console import Console

from rmqd.cli.top.top_frame import LastStatus, TerminalSize, ViewState, frame
from tests.nightly.docs.demo_picture import THEME, without_fonts

TOP: Final = Path(__file__).parents[3]
SIZE: Final = TerminalSize(126, 16)


def main() -> None:
    """Write the picture."""
    document = json.loads((TOP / "tests" / "cli" / "status_two_workers_spark.json").read_text())
    state = ViewState().with_listing(cursor="warehouse-packer")
    console = Console(file=io.StringIO(), record=True, width=SIZE.width, height=SIZE.height, force_terminal=True)
    console.print(frame(state, LastStatus(document, time="14:20:16"), SIZE))
    svg = console.export_svg(title="rmqd top", theme=THEME, unique_id="top")
    (TOP / "docs" / "top.svg").write_text(without_fonts(svg))


if __name__ == "__main__":
    main()
