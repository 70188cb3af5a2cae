"""`rmqd spark submit`: runs a group on a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.cluster import ConfigPath, Overrides
from rmqd.cli.render import say

if TYPE_CHECKING:
    from rmqd.spark.group_order import GroupOrder
    from rmqd.spark.submit.submission import Submission

HELP = """\
rmqd and the plugins that are installed here are packed into an archive for the executors, which Spark unpacks on each
of them. On Kubernetes they are in the image. Without SPARK_HOME, PySpark's own spark-submit is used, and without Java,
the extra's Java.

In deploy mode client, the default, the driver is a process on this machine, and the command runs as long as the group:
SIGTERM or SIGINT finishes the current micro-batch, commits, and exits with 0; a second one ends it at once. In deploy
mode cluster the driver is a process in the cluster: use the cluster's tools to stop it.

Options after -- are passed to spark-submit.

Example: rmqd spark submit orders --master spark://spark-1:7077 -- --executor-memory 2g
"""


def submit(
    group: Annotated[str, typer.Argument(help="The name of a group with engine: spark")],
    passed: Annotated[list[str] | None, typer.Argument(help="Options for spark-submit, after --")] = None,
    config: ConfigPath = None,
    overrides: Overrides = None,
    master: Annotated[
        str, typer.Option("--master", help="spark://HOST:7077, yarn or k8s://URL; default: the group's")
    ] = "",
    deploy_mode: Annotated[str, typer.Option("--deploy-mode", help="client or cluster: where the driver runs")] = "",
    environment: Annotated[
        str, typer.Option("--environment", help="Archive as a file or URL, or none; default: packed now")
    ] = "",
    include: Annotated[
        list[Path] | None, typer.Option("--include", help="Path of another module or package to pack; repeatable")
    ] = None,
    spark_home: Annotated[str, typer.Option("--spark-home", help="Default: $SPARK_HOME, else PySpark's own")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command")] = False,
) -> None:
    """Run a group on a cluster."""
    import tempfile  # imported here, because other commands do not need it

    from rmqd.errors import ConfigError, RmqdError
    from rmqd.exit_codes import ExitCode
    from rmqd.spark.engine.ordering import order_of
    from rmqd.spark.prepare import provide_programs
    from rmqd.spark.submit import run as submitting

    folder = Path(tempfile.mkdtemp(prefix="rmqd-submit-"))
    try:
        program = submitting.find_spark_submit(spark_home)
        named = (f"groups.{group}.spark.master={master}",) if master else ()
        order = order_of(config, group, (*(overrides or ()), *named))
        archive = environment or str(folder / "environment.tar.gz")
        submission = _submission(order, deploy_mode, archive, is_named=bool(environment), passed=passed or [])
        if dry_run:
            typer.echo(shlex.join(submission.command(program, folder)))
            raise typer.Exit(ExitCode.OK)
        provide_programs()  # spark-submit logs the progress
        if submission.environment and not environment:
            _pack(order, include or [], Path(archive))
        submitting.write_folder(submission, folder)
        code = submitting.run(submission, program, folder)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(str(problem), err=True)
        raise typer.Exit(ExitCode.CONFIG) from None
    except (RmqdError, OSError) as error:
        typer.echo(f"rmqd spark submit: {error}", err=True)
        raise typer.Exit(ExitCode.FAILURE) from None
    finally:
        submitting.remove_folder(folder)
    raise typer.Exit(code)


def _submission(order: GroupOrder, deploy_mode: str, archive: str, *, is_named: bool, passed: list[str]) -> Submission:
    """Return the submission. On Kubernetes rmqd is in the image, unless an archive is given. Raises ConfigError."""
    from rmqd.spark.session import session_conf
    from rmqd.spark.submit.submission import NO_ENVIRONMENT, submission_of

    settings = order.settings.spark
    is_in_image = settings is not None and settings.master.startswith("k8s://")
    environment = NO_ENVIRONMENT if is_in_image and not is_named else archive
    conf = session_conf(order)
    return submission_of(order, conf, deploy_mode=deploy_mode, environment=environment, passed=passed)


def _pack(order: GroupOrder, include: list[Path], archive: Path) -> None:
    """Write the packed environment. Raises RmqdError, OSError."""
    from rmqd.spark.submit.packed_environment import pack
    from rmqd.spark.submit.packed_files import packed_files

    settings = order.settings
    plugins = [part.plugin for part in (settings.handler, settings.pipeline, settings.sink) if part and part.plugin]
    typer.echo("rmqd spark submit: packing the executors' environment", err=True)
    left_out: list[str] = []
    pack(packed_files(plugins, include, left_out), archive)
    say((f"omitted: {one}" for one in left_out), err=True)
    typer.echo(f"rmqd spark submit: {archive.stat().st_size / 1e6:.0f} MB", err=True)
