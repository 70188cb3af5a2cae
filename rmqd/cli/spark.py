"""`rmqd spark`: groups with engine: spark, without the daemon."""

from __future__ import annotations

import typer

from rmqd.cli import spark_pack, spark_run, spark_submit

HELP = """Run groups with engine: spark without the daemon.

Under rmqd run they run beside all others; these commands are for one group by itself.

Example: rmqd spark submit orders --master spark://spark-1:7077
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("run", help=spark_run.HELP)(spark_run.run)
app.command("submit", help=spark_submit.HELP)(spark_submit.submit)
app.command("pack", help=spark_pack.HELP)(spark_pack.pack)
