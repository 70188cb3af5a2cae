"""`rmqd groups`: the consumer groups of a cluster."""

from __future__ import annotations

import typer

from rmqd.cli import group_mode, groups_list, groups_show

HELP = """Look at the consumer groups of a cluster, of any client, and set whether they pop or pull.

Example: rmqd groups show order-mailer
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("list", help=groups_list.HELP)(groups_list.list_groups)
app.command("show", help=groups_show.HELP)(groups_show.show_group)
app.command("mode", help=group_mode.HELP)(group_mode.set_mode)
