"""`rmqd spark pack`: the environment that a cluster's executors need, as an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmqd.cli.render import say

HELP = """\
rmqd spark submit does so by itself; an archive that lies where the cluster finds it (HDFS, S3) saves sending it along
each time: rmqd spark submit --environment hdfs:///rmqd/environment.tar.gz. It has no Python of its own: the nodes need
one of the same version as the one that packs, and the same operating system and processor.

Example: rmqd spark pack environment.tar.gz
"""


def pack(
    archive: Annotated[Path, typer.Argument(help="Where to write it, as NAME.tar.gz")],
    include: Annotated[
        list[Path] | None, typer.Option("--include", help="Add a module or a package by its path; repeatable")
    ] = None,
    include_secrets: Annotated[
        bool, typer.Option("--include-secrets", help="Leave nothing of --include out: .env, .git, private keys, ...")
    ] = False,
) -> None:
    """Pack what executors need into an archive."""
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
    say((f"left out: {one}" for one in left_out), err=True)
    typer.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
