"""The commands `rmqd spark run`, `submit`, `pack` and `compact`."""

from __future__ import annotations

import shlex
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import ConfigPath, Output, Overrides, SparkGroup, duration_ms, group_names, one_of
from rmqd.cli.terminal.output import count, say, say_json
from rmqd.errors import ConfigError, ExitCode, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.spark import check_versions

with import_lazily():
    from rmqd.runtime import event_loop, value_kinds
    from rmqd.runtime.logs import log_setup
    from rmqd.spark import prepare
    from rmqd.spark.engine import driver
    from rmqd.spark.pipelines import compaction, parquet_sink
    from rmqd.spark.session import group_spec
    from rmqd.spark.submit import packed_files as packing
    from rmqd.spark.submit import submission as submitting


@contextmanager
def _errors_of(command: str) -> Iterator[None]:
    """Return a context that ends the command with 1 on RmqdError or OSError. It does not catch ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (RmqdError, OSError) as error:
        fail(ExitCode.FAILURE, f"rmqd spark {command}: {error}")


def compact(
    group: SparkGroup = "",
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only files of at least this age, as 12h or 1d")
    ] = "1d",
    size: Annotated[
        str, typer.Option("--size", help="Target size of files; files of three quarters of it stay")
    ] = "128MiB",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan")] = False,
    config: ConfigPath = None,
    overrides: Overrides = None,
    output: Output = "table",
) -> None:
    """Compact the small files of a group's Parquet sink into large ones; the group may run meanwhile.

    For a group whose sink or handler writes Parquet, for example from cron: small files of each partition that are old
    enough become a few large ones with the same rows. The group may run meanwhile, here or elsewhere. Readers never see
    a row twice; while files are being renamed, their rows are missing for a moment. If the command is killed in
    between, the group's next micro-batch or start on Spark, or the next compaction, renames the rest. Readers that have
    listed the folder before may miss files, and must list it again.

    -o json prints [{partition, files, size_bytes}], with one entry for each new file.

    Example: rmqd spark compact orders-archive --older-than 1d --size 128MiB
    """
    older_seconds = duration_ms(older_than, "--older-than") / 1000
    try:
        wanted_bytes = value_kinds.parse_size_bytes(size)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected a size such as 128MiB", param_hint="--size") from None
    spec = group_spec.load_spec(config, group, tuple(overrides or ()), any_engine=True)
    with _errors_of("compact"):
        check_versions()  # raises if PySpark is missing: a group with engine: local does not need it
    parquet_sink.sink_to_compact(spec)
    log_setup.configure_logging(spec.config.log.level, spec.config.log.format)

    merged: list[dict[str, object]] = []

    def show_chunk(chunk: compaction.CompactionChunk) -> None:
        merged.append({"partition": chunk.partition, "files": len(chunk.names), "size_bytes": chunk.size_bytes})
        if output == "json":
            return
        what = "would become one" if dry_run else "became one"
        mib = chunk.size_bytes / (1 << 20)
        say([f"{chunk.partition or '.'}: {count(len(chunk.names), 'file')} of {mib:.1f} MiB {what}"])

    with _errors_of("compact"):
        session = group_spec.build_session(spec)
        try:
            parquet_sink.compact_archive(
                session,
                spec,
                older_seconds=older_seconds,
                wanted_bytes=wanted_bytes,
                dry_run=dry_run,
                on_chunk=show_chunk,
            )
        finally:
            session.stop()
    if output == "json":
        say_json(merged)
    elif not dry_run:
        say([f"{count(len(merged), 'file')} written"])


def pack(
    archive: Annotated[Path, typer.Argument(help="Path of the archive, as NAME.tar.gz")],
    include: Annotated[
        list[Path] | None, typer.Option("--include", help="Path of a module or package to add; repeatable")
    ] = None,
    include_secrets: Annotated[
        bool, typer.Option("--include-secrets", help="Also pack .env, .git, private keys and so on of --include")
    ] = False,
) -> None:
    """Pack rmqd, all plugin distributions and their requirements into an archive for a cluster.

    rmqd spark submit does so automatically. An archive that the cluster can read (HDFS, S3) need not be sent each time:
    rmqd spark submit --environment hdfs:///rmqd/environment.tar.gz. It does not contain Python: the nodes need the same
    Python version, operating system and processor as the machine that packs.

    Example: rmqd spark pack environment.tar.gz
    """
    left_out: list[str] = []
    with _errors_of("pack"):
        files = packing.files_to_pack(included=include or (), skipped_secrets=None if include_secrets else left_out)
        packing.write_archive(files, archive)
    say((f"omitted: {one}" for one in left_out), err=True)
    typer.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")


def run(group: SparkGroup = "", config: ConfigPath = None, overrides: Overrides = None) -> None:
    """Run one group with engine: spark here, in the foreground, until a signal.

    As with rmqd run, its messages are handled in micro-batches and its offsets are committed. Without the daemon there
    are no metrics and no restarts: its figures are logged every 10 seconds, and a failure ends the command with 1.
    SIGTERM or SIGINT finishes the current micro-batch, commits and exits with 0; a second one ends it at once and exits
    with 128 + its number. With spark.trigger: available_now the command ends when all present messages are handled.

    Example: rmqd spark run order-archive --set groups.order-archive.spark.trigger=available_now
    """
    spec = group_spec.load_spec(config, group, tuple(overrides or ()))
    with _errors_of("run"):
        check_versions()
    stop, force_stop = threading.Event(), threading.Event()
    cut_short: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if not stop.is_set():
            stop.set()
            return
        cut_short.append(number)
        force_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    driver.set_python_path(spec.import_path)
    code = driver.run_group(spec, stop, force_stop)
    event_loop.exit_process(128 + cut_short[0] if cut_short else code)


def submit(
    group: Annotated[str, typer.Argument(help="The name of a group with engine: spark", autocompletion=group_names)],
    passed: Annotated[list[str] | None, typer.Argument(help="Options for spark-submit, after --")] = None,
    config: ConfigPath = None,
    overrides: Overrides = None,
    master: Annotated[
        str, typer.Option("--master", help="spark://HOST:7077, yarn or k8s://URL; default: the group's")
    ] = "",
    deploy_mode: Annotated[
        str,
        typer.Option(
            "--deploy-mode",
            metavar="client|cluster",
            help="client or cluster: where the driver runs",
            autocompletion=one_of("client", "cluster"),
        ),
    ] = "",
    environment: Annotated[
        str, typer.Option("--environment", help="Archive as a file or URL, or none; default: packed now")
    ] = "",
    include: Annotated[
        list[Path] | None, typer.Option("--include", help="Path of another module or package to pack; repeatable")
    ] = None,
    spark_home: Annotated[str, typer.Option("--spark-home", help="Default: $SPARK_HOME, else PySpark's own")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command")] = False,
) -> None:
    """Run a group with engine: spark on a cluster: standalone, YARN or Kubernetes, by spark-submit.

    rmqd and the plugins that are installed here are packed into an archive for the executors, which Spark unpacks on
    each of them. On Kubernetes they are in the image. Without SPARK_HOME, PySpark's own spark-submit is used, and
    without Java, the extra's Java.

    In deploy mode client, the default, the driver is a process on this machine, and the command runs as long as the
    group: SIGTERM or SIGINT finishes the current micro-batch, commits, and exits with 0; a second one ends it at once.
    In deploy mode cluster the driver is a process in the cluster: use the cluster's tools to stop it.

    Options after -- are passed to spark-submit.

    Example: rmqd spark submit orders --master spark://spark-1:7077 -- --executor-memory 2g
    """

    folder = Path(tempfile.mkdtemp(prefix="rmqd-submit-"))
    try:
        with _errors_of("submit"):
            program = submitting.find_spark_submit(spark_home)
            named = (f"groups.{group}.spark.master={master}",) if master else ()
            spec = group_spec.load_spec(config, group, (*(overrides or ()), *named))
            archive = environment or str(folder / "environment.tar.gz")
            submission = _submission(spec, deploy_mode, archive, is_named=bool(environment), passed=passed or [])
            if dry_run:
                typer.echo(shlex.join(submission.command(program, folder)))
                raise typer.Exit(ExitCode.OK)
            prepare.provide_java_and_python()
            if submission.environment and not environment:
                _pack(spec, include or [], Path(archive))
            submitting.write_submit_files(submission, folder)
            code = submitting.run_spark_submit(submission, program, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # its files may contain passwords
    raise typer.Exit(code)


def _submission(
    spec: group_spec.GroupSpec, deploy_mode: str, archive: str, *, is_named: bool, passed: list[str]
) -> submitting.SparkSubmission:
    """Return the submission. On Kubernetes, rmqd is in the image unless an archive is named. Raises ConfigError."""
    settings = spec.settings.spark
    is_in_image = settings is not None and settings.master.startswith("k8s://")
    environment = submitting.NO_ENVIRONMENT_WORD if is_in_image and not is_named else archive
    conf = group_spec.session_conf(spec)
    return submitting.make_submission(spec, conf, deploy_mode=deploy_mode, environment=environment, passed=passed)


def _pack(spec: group_spec.GroupSpec, include: list[Path], archive: Path) -> None:
    """Pack rmqd, the group's plugins and `include` into `archive` for the executors. Raises RmqdError or OSError."""
    settings = spec.settings
    plugins = [part.plugin for part in (settings.handler, settings.pipeline, settings.sink) if part and part.plugin]
    typer.echo("rmqd spark submit: packing the executors' environment", err=True)
    left_out: list[str] = []
    packing.write_archive(packing.files_to_pack(plugins, include, left_out), archive)
    say((f"omitted: {one}" for one in left_out), err=True)
    typer.echo(f"rmqd spark submit: {archive.stat().st_size / 1e6:.0f} MB", err=True)
