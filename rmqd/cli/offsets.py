"""`rmqd offsets`: where a group stands in its queues."""

from __future__ import annotations

import typer

from rmqd.cli import offsets_show

HELP = """Look at a group's offsets.

Example: rmqd offsets show order-mailer orders
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("show", help=offsets_show.HELP)(offsets_show.show)


@app.callback()
def offsets() -> None:
    """What comes before a command."""
