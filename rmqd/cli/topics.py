"""`rmqd topics`: the topics of a cluster."""

from __future__ import annotations

import typer

from rmqd.cli import topics_list, topics_show

HELP = """Look at the topics of a cluster.

Example: rmqd topics show orders
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("list", help=topics_list.HELP)(topics_list.list_topics)
app.command("show", help=topics_show.HELP)(topics_show.show_topic)
