"""`rmqd test`: YAML cases against handlers."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.control import Output, check_output
from rmqd.cli.render import count, say_json

if TYPE_CHECKING:
    from rmqd.testing.case_file import Case
    from rmqd.testing.case_run import CaseReport

HELP = """\
Each case has a RocketMQ of its own in this process, and the handler is called by the real consumer. Retries and delays
take no time. PATH is a file, or a folder whose *.cases.yaml are run, with all folders in it.

With --chaos a case whose messages become what is expected is also run with messages that come twice, with calls that
are cut, and with queues in other orders. It fails where its handler leaves something else then, and the shortest such
history is told. With --chaos-kills also a process is killed, where the file has a `state`: it imports the handler anew,
so what a module of the tests has replaced is the real thing there.

Exit 1 where something else became of a message than was expected, 78 where a file is wrong.

Example: rmqd test tests/mailer.cases.yaml
"""


def run_cases(
    path: Annotated[Path, typer.Argument(help="A file of cases, or a folder with files NAME.cases.yaml")] = Path(),
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The configuration whose groups the cases name; default: as of rmqd run"),
    ] = None,
    output: Output = "table",
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Also call each handler twice, cut it, mix queues: is its effect repeatable?"),
    ] = False,
    chaos_kills: Annotated[
        bool,
        typer.Option("--chaos-kills", help="As --chaos, and kill the handler's process, in which no fake holds"),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again whenever a .py or .yaml file here changes, until Ctrl-C")
    ] = False,
) -> None:
    """Run YAML cases against handlers."""
    from rmqd.exit_codes import ExitCode
    from rmqd.process.logs.logs import configure_logging
    from rmqd.testing.case_run import run_case

    check_output(output)
    if watch:
        from rmqd.cli.test_watch import run_again_and_again

        run_again_and_again(path, config, output, chaos=chaos, kills=chaos_kills)
        return
    cases = _read(path, config)
    configure_logging("critical", "auto")  # failures of handlers are what cases test; the report has them
    reports: list[CaseReport] = []
    for case in cases:
        with contextlib.redirect_stdout(sys.stderr):  # what handlers print is not part of the report
            report = run_case(case, in_chaos=chaos, kills=chaos_kills)
        if output != "json":
            typer.echo("\n".join(_lines(report, is_first=not reports or reports[-1].case.file != case.file)))
        reports.append(report)
    failed = sum(bool(report.problems) for report in reports)
    if output == "json":
        say_json([_document(report) for report in reports])
    else:
        typer.echo(f"\n{count(len(cases), 'case')}: {len(cases) - failed} as expected, {failed} not")
    raise typer.Exit(ExitCode.FAILURE if failed else ExitCode.OK)


def _read(path: Path, config: Path | None) -> list[Case]:
    """Read all cases. Ends the command if one has a problem, so that none is run."""
    from rmqd.errors import ConfigError
    from rmqd.exit_codes import ExitCode
    from rmqd.testing.case_file import ENDING, find_case_files, read_cases

    if not path.exists():
        raise typer.BadParameter(f"{path}: no such file or folder", param_hint="PATH")
    files = find_case_files(path)
    if not files:
        raise typer.BadParameter(f"no file *{ENDING} is in {path.resolve()}", param_hint="PATH")
    cases: list[Case] = []
    problems: list[object] = []
    for file in files:
        try:
            cases += read_cases(file, config)
        except ConfigError as error:
            problems += error.problems
    for problem in problems:
        typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(ExitCode.CONFIG)
    return cases


def _lines(report: CaseReport, *, is_first: bool) -> list[str]:
    case = report.case
    heading = [str(case.file)] if is_first else []
    took = f"{count(report.attempts, 'attempt')}, {report.elapsed_seconds:.0f} s by the broker's clock"
    below = [f"            {line}" for line in (*report.problems, *report.notes)]
    if not report.problems:
        return [*heading, f"  ok      {case.name}  ({took})", *below]
    return [*heading, f"  FAILED  {case.name}  ({case.place})", *below]


def _document(report: CaseReport) -> dict[str, Any]:
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
