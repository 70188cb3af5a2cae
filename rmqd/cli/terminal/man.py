"""`rmqd --man`: the manual page, generated from the help of all commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Final

import typer

from rmqd.cli.terminal.commands import Command, help_rows
from rmqd.version import __version__

_EXIT_STATUS: Final = (
    ("0", "Success."),
    ("1", "Failure, or a negative answer, such as a lag above --fail-over."),
    ("2", "Wrong usage."),
    ("69", "RocketMQ, or the running daemon, cannot be reached."),
    ("78", "The configuration is wrong; nothing was connected."),
    ("130, 143", "Interrupted by Ctrl-C or SIGTERM; a command that runs until it is stopped, by the second one."),
)
_ENVIRONMENT: Final = (
    ("RMQD_CONFIG", "The configuration, if --config is not given."),
    (
        "RMQD_ACCESS_KEY, RMQD_SECRET_KEY, RMQD_SECURITY_TOKEN",
        "The keys with --nameserver and without a configuration.",
    ),
    ("NAMESRV_ADDR", "The name servers, host:port;host:port, if neither --nameserver nor a configuration gives any."),
    ("NO_COLOR", "Disables colours, if set to any value."),
)
_FILES: Final = (
    ("config/rmqd.yaml, /etc/rmqd/rmqd.yaml", "The configuration, if neither --config nor RMQD_CONFIG is given."),
    (
        "/var/lib/rmqd",
        "Local state (state_dir): offsets of broadcasting groups, backups, marks of settled dead letters.",
    ),
)


def show_manual(context: Any) -> None:
    """Show the manual page with `man`. Without a terminal or `man`, print the page's source, as `man -l -` reads it."""
    page = manual(context.command, context)
    if sys.stdout.isatty() and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=page.encode(), check=False)
    else:
        typer.echo(page, nl=False)


def manual(root: Any, context: Any) -> str:
    """Return the source of the manual page, in roff."""
    lines = [f'.TH RMQD 1 "" "rmqd {__version__}" "User Commands"', ".SH NAME"]
    lines += [rf"rmqd \- {_text(paragraphs(root)[0]).rstrip('.')}", ".SH SYNOPSIS", ".B rmqd"]
    lines += [r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGS\fR]...", ".SH DESCRIPTION", *_body(paragraphs(root)[1:])]
    lines += [".SH OPTIONS", *_parameters(root, context), ".SH COMMANDS"]
    for command, its_context in leaves(root, context):
        usage = " ".join(command.collect_usage_pieces(its_context))
        lines += [f".SS {_text(f'{its_context.command_path} {usage}')}"]
        lines += [*_body(paragraphs(command)), *_parameters(command, its_context)]
    for title, rows in (("EXIT STATUS", _EXIT_STATUS), ("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        lines += [f".SH {title}", *(line for term, text in rows for line in _item(term, text))]
    lines += [".SH SEE ALSO", *_body(["mqadmin of Apache RocketMQ."])]
    return "\n".join(lines) + "\n"


def leaves(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the commands below a group of commands, at any depth, with their contexts. Omits hidden commands."""
    for name, one in command.commands.items():
        if not one.hidden:
            if isinstance(one, Command):
                one.load()
            its_context = type(context)(one, info_name=name, parent=context)
            if hasattr(one, "commands"):
                yield from leaves(one, its_context)
            else:
                yield one, its_context


def paragraphs(command: Any) -> list[str]:
    return [" ".join(part.split()) for part in cleandoc(command.help or "").split("\n\n")]


def _body(paragraphs: list[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        yield ".PP"
        yield _text(paragraph)


def _parameters(command: Any, context: Any) -> Iterator[str]:
    for name, text in help_rows(command, context, "argument", "option"):
        yield from _item(name, text)


def _item(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield rf"\fB{_text(term)}\fR"
    yield _text(text)


def _text(text: str) -> str:
    """Return the text with roff's special characters escaped."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
