"""`rmqd message`: single messages of a cluster."""

from __future__ import annotations

import typer

from rmqd.cli import message_get, message_query

HELP = """Look at single messages of a cluster.

Example: rmqd message query orders order-4711
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("get", help=message_get.HELP)(message_get.get)
app.command("query", help=message_query.HELP)(message_query.query)
