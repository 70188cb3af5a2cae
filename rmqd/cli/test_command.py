"""`rmqd test`: tests handlers with cases that are written in YAML."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.cli.terminal.options import Output
from rmqd.cli.terminal.output import count, say_json
from rmqd.errors import ConfigError, ExitCode
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration

with import_lazily():
    from rmqd.runtime import files as watched_files
    from rmqd.runtime.logs import log_setup
    from rmqd.testing import case_run

ENDINGS = (".py", ".yaml", ".yml", ".toml")


def run_on_changes(path: Path) -> None:
    """Run the cases now and after each change of a watched file, until Ctrl-C.

    Each run is a new process, so it imports the changed code, and keeps no objects of earlier runs.
    """
    command = [sys.executable, "-m", "rmqd", *(word for word in sys.argv[1:] if word != "--watch")]
    files = watched_files.FileWatch([Path(), path if path.is_dir() else path.parent], endings=ENDINGS)
    try:
        while True:
            subprocess.run(command, check=False)
            typer.echo("waiting for file changes; press Ctrl-C to end", err=True)
            while not (changed := files.changes()):
                time.sleep(watched_files.POLL_SECONDS)
            typer.echo(f"\n{', '.join(_short(file) for file in changed)} changed", err=True)
    except KeyboardInterrupt:
        return


def _short(file: Path) -> str:
    here = Path().resolve()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def run_cases(
    path: Annotated[Path, typer.Argument(help="File of cases, or folder with files NAME.cases.yaml")] = Path(),
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration with the groups of the cases; default: as for rmqd run"),
    ] = None,
    output: Output = "table",
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Also test whether the effect is repeatable: repeat and cancel calls, mix queues"),
    ] = False,
    chaos_kills: Annotated[
        bool, typer.Option("--chaos-kills", help="Like --chaos, and kill the handler's process, which has no fakes")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again when a .py or .yaml file here changes, until Ctrl-C")
    ] = False,
) -> None:
    """Run cases written in YAML: messages for a handler, and their expected outcomes.

    Each case has its own RocketMQ in this process, and the real consumer calls the handler. Retries and delays take no
    time. PATH is a file, or a folder whose *.cases.yaml are run, including subfolders.

    With --chaos a case with the expected outcome is run again with repeated messages, cancelled calls, and other orders
    of queues. It fails if its handler then leaves another state, and the report shows the shortest such history.
    --chaos-kills also kills a process, if the file has a `state`. This process imports the handler again, so modules
    that the tests have replaced are real there.

    It exits with 1 if a message had another outcome than expected, and with 78 if a file is wrong.

    Example: rmqd test tests/mailer.cases.yaml
    """
    if watch:
        run_on_changes(path)
        return
    cases = _read(path, config)
    log_setup.configure_logging("critical", "auto")  # handlers fail on purpose in cases, and the report shows that
    reports: list[case_run.CaseReport] = []
    for case in cases:
        with contextlib.redirect_stdout(sys.stderr):  # standard output has only the report, not the handlers' output
            report = case_run.run_case(case, in_chaos=chaos, kills=chaos_kills)
        if output != "json":
            typer.echo("\n".join(_lines(report, is_first=not reports or reports[-1].case.file != case.file)))
        reports.append(report)
    failed = sum(bool(report.problems) for report in reports)
    if output == "json":
        say_json([_document(report) for report in reports])
    else:
        typer.echo(f"\n{count(len(cases), 'case')}: {len(cases) - failed} as expected, {failed} not")
    raise typer.Exit(ExitCode.FAILURE if failed else ExitCode.OK)


def _read(path: Path, config: Path | None) -> list[case_run.Case]:
    """Read all cases before the first case is run. Raises ConfigError with the problems of all files."""
    if not path.exists():
        raise typer.BadParameter(f"{path}: no such file or folder", param_hint="PATH")
    files = case_run.find_case_files(path)
    if not files:
        raise typer.BadParameter(f"{path.resolve()} has no files *{case_run.CASES_FILE_SUFFIX}", param_hint="PATH")
    cases: list[case_run.Case] = []
    problems: list[object] = []
    for file in files:
        try:
            cases += case_run.read_cases(file, config)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return cases


def _lines(report: case_run.CaseReport, *, is_first: bool) -> list[str]:
    case = report.case
    heading = [str(case.file)] if is_first else []
    took = f"{count(report.attempts, 'attempt')}, {duration(report.elapsed_seconds)} by the broker's clock"
    below = [f"            {line}" for line in (*report.problems, *report.notes)]
    if not report.problems:
        return [*heading, f"  ok      {case.name}  ({took})", *below]
    return [*heading, f"  FAILED  {case.name}  ({case.place})", *below]


def _document(report: case_run.CaseReport) -> dict[str, Any]:
    case = report.case
    return {
        "file": str(case.file),
        "case": case.name,
        "place": case.place,
        "ok": not report.problems,
        "problems": list(report.problems),
        "notes": list(report.notes),
        "attempts": report.attempts,
        "elapsed_seconds": round(report.elapsed_seconds, 3),
        "messages": [
            {"name": name, "acked": fate.acked, "retried": fate.retried, "dead_letters": list(fate.reasons)}
            for name, fate in report.fates.items()
        ],
    }
