"""`rmqd spark compact`: compacts the small files of a Parquet sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.cluster import ConfigPath, Overrides, fail
from rmqd.cli.moment import seconds
from rmqd.cli.render import count, say

if TYPE_CHECKING:
    from rmqd.spark.pipelines.compaction_plan import Chunk

HELP = """\
For a group whose sink writes Parquet, for example from cron: small files of each partition that are old enough become a
few large ones with the same rows. The group may run meanwhile, here or elsewhere. Readers never see a row twice; while
files are being renamed, their rows are missing for a moment. If the command is killed in between, the group's next
micro-batch or start, or the next compaction, renames the rest. Readers that have listed the folder before may miss
files, and must list it again.

Example: rmqd spark compact orders-archive --older-than 1d --size 128MiB
"""


def compact(
    group: Annotated[str, typer.Argument(help="The group's name; optional if only one is on Spark")] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only files of at least this age, as 12h or 1d")
    ] = "1d",
    size: Annotated[
        str, typer.Option("--size", help="Target size of files; files of three quarters of it stay")
    ] = "128MiB",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan")] = False,
    config: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Compact the small files that a group's sink has written."""
    from rmqd.config.model.quantities import parse_size_bytes
    from rmqd.errors import ConfigError, RmqdError
    from rmqd.exit_codes import ExitCode
    from rmqd.process.logs import logs
    from rmqd.spark.engine.archive_compaction import compact_archive, sink_to_compact
    from rmqd.spark.engine.ordering import order_of
    from rmqd.spark.session import build_session

    older_seconds = seconds(older_than, "--older-than")
    try:
        wanted_bytes = parse_size_bytes(size)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected a size such as 128MiB", param_hint="--size") from None
    try:
        order = order_of(config, group, tuple(overrides or ()))
        sink_to_compact(order)
    except ConfigError as error:
        fail(ExitCode.CONFIG, problems=map(str, error.problems))
    logs.configure_logging(order.config.log.level, order.config.log.format)

    def tell(chunk: Chunk) -> None:
        what = "would become one" if dry_run else "became one"
        mib = chunk.size_bytes / (1 << 20)
        say([f"{chunk.partition or '.'}: {count(len(chunk.names), 'file')} of {mib:.1f} MiB {what}"])

    try:
        session = build_session(order)
        try:
            made = compact_archive(
                session, order, older_seconds=older_seconds, wanted_bytes=wanted_bytes, dry_run=dry_run, on_chunk=tell
            )
        finally:
            session.stop()
    except ConfigError as error:
        fail(ExitCode.CONFIG, problems=map(str, error.problems))
    except RmqdError as error:
        typer.echo(f"rmqd spark compact: {error}", err=True)
        raise typer.Exit(ExitCode.FAILURE) from None
    if not dry_run:
        say([f"{count(made, 'file')} written"])
