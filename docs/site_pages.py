"""The pages of the site that are not in docs/: generated from the code, or kept at the top of the repository."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rmqd
import rmqd.testing
from rmqd.cli.app import command_line
from rmqd.cli.terminal.commands import help_rows
from rmqd.cli.terminal.man import leaves, paragraphs

TOP: Final = Path(__file__).parent.parent
MOVED: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "vulnerabilities.md",
}
LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
PYTHON_API: Final = {
    "rmqd": ["Handlers, and programs that poll.", *rmqd.__all__],
    "rmqd.testing": ["Tests of handlers; [Testing](testing.md) shows how.", *rmqd.testing.__all__],
    "rmqd.offset_stores": ["Custom stores; see [Offset stores](offset-stores.md).", ""],
    "rmqd.spark": ["The source and sink for Spark; see [Spark](spark.md).", "register", "lag"],
}
"""The public modules, each with a sentence and its names."""
FENCE: Final = re.compile(r"^( *```\w+) [\w-]+$", re.MULTILINE)
"""The first line of a code block with a word for the tests: what it needs, such as `spark`."""
TABLE_ROW: Final = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE: Final = re.compile(r"`[^`\n]+`")


def on_config(config: MkDocsConfig) -> None:
    """Add the version to the title, and the pages of the commands to the navigation."""
    config.site_name = f"rmqd {rmqd.__version__}"
    for part in config.nav or []:
        for entries in part.values():
            for entry in entries:
                if isinstance(entry, dict) and "Commands" in entry:
                    entry["Commands"] = list(command_pages())


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the pages, and the files of deploy/ to which pages link."""
    pages = command_pages() | {"python-api.md": python_api()}
    pages |= {name: (TOP / source).read_text() for source, name in MOVED.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((TOP / "deploy").rglob("*")):
        name = path.relative_to(TOP).as_posix()
        if path.is_file() and "__pycache__" not in name:
            files.append(File.generated(config, name, abs_src_path=str(path)))


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Point the links of the repository's pages to the pages of the site.

    In the code of tables, remove the backslash before `|`: GitHub needs it, and Python-Markdown would show it.
    """
    here = posixpath.dirname(page.file.src_uri)
    folder = "" if page.file.src_uri in MOVED.values() else f"docs/{here}"

    def on_site(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if (TOP / path).is_dir():  # folders have no page
            return text
        path = MOVED.get(path, path.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(path, here or '.')}{anchor})"

    def without_backslashes(row: re.Match[str]) -> str:
        return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])

    return TABLE_ROW.sub(without_backslashes, FENCE.sub(r"\1", LINK.sub(on_site, markdown)))


def command_pages() -> dict[str, str]:
    """Return a page for each command, or for all commands with the same first word, as `rmqd --help` shows them."""
    root: Any = command_line()
    pages: dict[str, str] = {}
    for command, context in leaves(root, root.make_context("rmqd", [], resilient_parsing=True)):
        first = context.command_path.split()[1]
        page, text = f"commands/{first}.md", "\n".join(command_text(command, context))
        if context.command_path.count(" ") == 1:
            pages[page] = f"# rmqd {first}\n{text}"
        else:
            pages.setdefault(page, "\n".join([f"# rmqd {first}\n", *prose(root.commands[first])]))
            pages[page] += f"\n## {context.command_path}\n{text}"
    return pages


def command_text(command: Any, context: Any) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n```console\n$ {context.command_path} {usage}\n```\n"
    yield from prose(command)
    for kind in ("argument", "option"):
        if rows := [*help_rows(command, context, kind)]:
            yield f"| {kind} | meaning |\n| --- | --- |"
            yield from (f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows)
            yield ""


def prose(command: Any) -> Iterator[str]:
    for paragraph in paragraphs(command):
        example = re.fullmatch(r"Example: (.*)", paragraph)
        yield f"```sh\n{example[1]}\n```\n" if example else f"{paragraph.replace('<', '&lt;')}\n"


def python_api() -> str:
    """Return the page of the public names. mkdocstrings takes signatures and docstrings from the code."""
    lines = ["# Python API\n\nAll other names may change: [Versions and stability](versions.md).\n"]
    for module, (summary, *names) in PYTHON_API.items():
        lines += [f"## {module}\n\n{summary}\n"]
        lines += [f"::: {module}.{name}".rstrip(".") + "\n" for name in names if not name.startswith("__")]
    return "\n".join(lines)
