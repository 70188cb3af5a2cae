"""`rmqd dlq`: the dead letters of groups."""

from __future__ import annotations

import typer

from rmqd.cli import dlq_list, dlq_purge, dlq_replay, dlq_show

HELP = """Look at dead letters, messages that a group has given up, and have them handled again or settle them.

Example: rmqd dlq show order-mailer
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("list", help=dlq_list.HELP)(dlq_list.list_dead_letters)
app.command("show", help=dlq_show.HELP)(dlq_show.show)
app.command("replay", help=dlq_replay.HELP)(dlq_replay.replay)
app.command("purge", help=dlq_purge.HELP)(dlq_purge.purge)
