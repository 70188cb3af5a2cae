"""`rmqd offsets`: where a group stands in its queues, and moving it."""

from __future__ import annotations

import typer

from rmqd.cli import offsets_reset, offsets_restore, offsets_show

HELP = """Look at a group's offsets, and move them.

Example: rmqd offsets show order-mailer orders
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("show", help=offsets_show.HELP)(offsets_show.show)
app.command("reset", help=offsets_reset.HELP)(offsets_reset.reset)
app.command("restore", help=offsets_restore.HELP)(offsets_restore.restore)


@app.callback()
def offsets() -> None:
    """What comes before a command."""
