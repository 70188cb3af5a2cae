"""`rmqd spark pack`: packs the environment that a cluster's executors need into an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmqd.cli.render import say

HELP = """\
rmqd spark submit does so automatically. An archive that the cluster can read (HDFS, S3) need not be sent each time:
rmqd spark submit --environment hdfs:///rmqd/environment.tar.gz. It does not contain Python: the nodes need the same
Python version, operating system and processor as the machine that packs.

Example: rmqd spark pack environment.tar.gz
"""


def pack(
    archive: Annotated[Path, typer.Argument(help="Path of the archive, as NAME.tar.gz")],
    include: Annotated[
        list[Path] | None, typer.Option("--include", help="Path of a module or package to add; repeatable")
    ] = None,
    include_secrets: Annotated[
        bool, typer.Option("--include-secrets", help="Also pack .env, .git, private keys and so on of --include")
    ] = False,
) -> None:
    """Pack the requirements of executors into an archive."""
    from rmqd.errors import RmqdError
    from rmqd.exit_codes import ExitCode
    from rmqd.spark.submit import packed_environment
    from rmqd.spark.submit.packed_files import packed_files

    left_out: list[str] = []
    try:
        files = packed_files(included=include or (), left_out=None if include_secrets else left_out)
        packed_environment.pack(files, archive)
    except (RmqdError, OSError) as error:
        typer.echo(f"rmqd spark pack: {error}", err=True)
        raise typer.Exit(ExitCode.FAILURE) from None
    say((f"omitted: {one}" for one in left_out), err=True)
    typer.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
