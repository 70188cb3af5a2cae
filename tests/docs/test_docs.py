"""Checks of README and docs/: examples run, tables are complete, links are valid."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.cli.app import COMMANDS, DOCS, command_line
from rmqd.config.load import load_config
from rmqd.consumer.allocate import AllocateStrategy
from rmqd.consumer.hooks import GroupHooks, Hook
from rmqd.daemon.groups.group_reload import LIVE_FIELDS
from rmqd.daemon.metrics.exposition import METRIC_SPECS
from rmqd.errors import ExitCode
from rmqd.handler_api.batch import LoadedHandler, Outcome
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.value_kinds import key_of_field
from rmqd.wire.message_queue import MessageQueue
from rmqd_handlers.exec import EXIT_ACK, EXIT_DEAD_LETTER, EXIT_RETRY
from tests.certificates import CA
from tests.docs.key_tables import PAGE, with_tables
from tests.handlers.messages import make_batch, make_message

TOP = PAGE.parent.parent
TABLES = set("rmqd_batches rmqd_claims rmqd_handled rmqd_offsets rmqd_order_kinds".split())  # created by rmqd
SHIPPED: dict[str, str] = {
    name: target
    for folder in (TOP, TOP / "handlers")
    for name, target in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"][
        "rmqd.handlers"
    ].items()
}
HANDLER_PAGES = (
    "handlers",
    "decisions-and-retries",
    "typed-handlers",
    "ordering",
    "unavailable-systems",
    "worker-processes",
    "hooks",
)
PAGES = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    TOP / "handlers" / "README.md",
    *sorted((TOP / "docs").rglob("*.md")),
]


def blocks(language: str) -> dict[str, str]:
    """Each code block of a language by its place."""
    return {
        f"{page.relative_to(TOP)}:{number}": text
        for page in PAGES
        for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.M), 1)
    }


def failing(cases: Iterable[str], check: Callable[[str], None]) -> list[str]:
    """Check each case, and return the errors of the cases that fail."""
    found = []
    for case in cases:
        try:
            check(case)
        except Exception as error:  # noqa: BLE001  code of the docs may raise anything
            found.append(f"{case}: {type(error).__name__}: {error}")
    return found


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, cell by cell, without the header."""
    section = page.read_text().split(f"\n{heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None, f"no table below {heading}"
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines()]
    return rows[2:]


def run_block(text: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # pydantic looks there for the names in annotations
    exec(compile(text, name, "exec"), vars(module))
    return module


def test_the_key_tables_equal_the_schema() -> None:
    page = PAGE.read_text()

    assert page == with_tables(page), "run: .venv/bin/python -m tests.docs.key_tables"


def test_every_configuration_in_the_docs_is_valid(tmp_path: Path) -> None:
    for name in ("rocketmq", "database"):
        (tmp_path / name).write_text("a secret")
    (tmp_path / "ca.pem").write_bytes(CA.read_bytes())
    texts = {place: text for place, text in blocks("yaml").items() if "\ncases:" not in text}

    def check(place: str) -> None:
        text = texts[place]
        for folder in ("/run/secrets/", "/etc/rmqd/"):
            text = text.replace(folder, f"{tmp_path}/")
        (tmp_path / "rmqd.yaml").write_text(text)
        assert load_config(tmp_path / "rmqd.yaml", environ={"RMQD_ACCESS_KEY": "a user"}).groups

    assert texts
    assert failing(texts, check) == []


def test_every_handler_example_in_the_docs_defines_one_handler() -> None:
    others = re.compile(
        r"client_ids|call_next|SyncPullConsumer|os.environ\[.* = |def (before_batch|test_|take|make_store)"
    )
    texts = {place: text for place, text in blocks("python").items() if not others.search(text)}

    def check(place: str) -> None:
        module = run_block(texts[place], "example")
        [_] = [value for name, value in vars(module).items() if name == "handle" or hasattr(value, "handle")]

    assert texts
    assert failing(texts, check) == []


def test_every_hook_example_in_the_docs_works(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {place: text for place, text in blocks("python").items() if "def before_batch" in text}

    def check(place: str) -> None:
        [make] = [value for value in vars(run_block(texts[place], "example")).values() if inspect.isclass(value)]
        hook: Any = make()
        found = Hook("example", hook.before_batch, hook.after_batch, hook.wants)
        group = GroupHooks([found], "mailer", "10.0.0.1@1", SystemClock())
        asked = make_message(b"x", keys="order-1"), make_message(b"x", properties={"load_test": "true"})
        capsys.readouterr()

        group.wrap_handler(LoadedHandler("log", lambda batch: None, False, None, None)).handle(make_batch(asked[0]))

        assert json.loads(capsys.readouterr().err)["keys"] == ["order-1"]
        assert group.unwanted_messages(asked, MessageQueue("orders", "broker-a", 0)) == [asked[1]]
        assert group.failures == {"example": 0}

    assert texts
    assert failing(texts, check) == []


def test_the_middleware_example_in_the_docs_works(capsys: pytest.CaptureFixture[str]) -> None:
    [text] = [text for text in blocks("python").values() if re.search(r"def __call__\(.*call_next", text)]
    [make] = [value for name, value in vars(run_block(text, "example")).items() if name == "Timing"]
    handled = []

    async def call_next(batch: Any) -> None:
        handled.extend(batch)

    asyncio.run(make()(make_batch(make_message(b"x")), call_next))

    assert len(handled) == 1
    assert capsys.readouterr().out.startswith("1 messages took 0.")


def test_the_suite_for_an_offset_store_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL runs its tests in tests/handlers; SQLite is enough for the effect."""
    store, suite = (
        text
        for place, text in blocks("python").items()
        if place.startswith("docs/offset-stores.md") and re.search(r"def (take|make_store)", text)
    )
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.offsets", shop := run_block(store, "shop.offsets"))
    tests = run_block(suite, "example").TestSqlOffsets()
    sql = shop.SqlOffsets(shop.SqlOffsets.Options(url=f"sqlite+aiosqlite:///{tmp_path}/shop.db"))

    async def effect() -> list[bool]:
        await sql.open()
        async with sql.transaction() as db:
            await db.execute(shop.text("CREATE TABLE effects (name text)"))
            await tests.add(db, "one")
            found = [await tests.has(db, name) for name in ("one", "two")]
        await sql.close()
        return found

    assert tests.make_store().open
    assert asyncio.run(effect()) == [True, False]


def test_every_strategy_in_the_docs_gives_each_queue_to_one_member() -> None:
    texts = {place: text for place, text in blocks("python").items() if "client_ids" in text}
    queues = [MessageQueue("orders", "broker-a", number) for number in range(8)]

    def check(place: str) -> None:
        [function] = [value for value in vars(run_block(texts[place], "example")).values() if inspect.isfunction(value)]
        strategy = AllocateStrategy("example", function)
        for members in (["a"], ["a", "b"], ["a", "b", "c"]):
            shares = [strategy.share("group", member, queues, members) for member in members]
            assert sorted(queue for share in shares for queue in share) == queues, members

    assert texts
    assert failing(texts, check) == []


def test_the_readmes_handler_sends_mail_and_dead_letters_invalid_json(capsys: pytest.CaptureFixture[str]) -> None:
    (code, *_) = re.findall(r"^```python\n(.*?)^```", (TOP / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    batch = make_batch(make_message(b'{"customer": "ada"}', keys="order-1"), make_message(b"oops", keys="order-2"))

    asyncio.run(run_block(code, "mailer").handle(batch))

    assert capsys.readouterr().out == "mail to ada: order-1 is paid\n"
    (decision,) = batch.decisions().values()
    assert (decision.outcome, decision.reason) == (
        Outcome.DEAD_LETTER,
        "not JSON: Expecting value: line 1 column 1 (char 0)",
    )


def test_the_keys_that_a_reload_changes_without_a_rebalance_are_listed() -> None:
    section = PAGE.read_text().split("\n## What a reload changes\n")[1].split("\n## ")[0]
    listed = section.split("without a rebalance:\n")[1].split("\nA group with any other change")[0]

    assert set(re.findall(r"`([a-z_]+)`", listed)) == set(map(key_of_field, LIVE_FIELDS))


def test_the_readme_lists_every_command_and_no_other() -> None:
    group = command_line()
    commands = {name for name, command in vars(group)["commands"].items() if not command.hidden}

    assert sorted(row[0] for row in table(TOP / "README.md", "## Commands")) == sorted(f"`rmqd {n}`" for n in commands)


def test_the_readme_names_each_command_of_two_words() -> None:
    rows = {row[0].strip("`").removeprefix("rmqd "): row[1] for row in table(TOP / "README.md", "## Commands")}
    pairs = [words.split() for words in COMMANDS if " " in words]
    missing = [f"rmqd {first} {second}" for first, second in pairs if not re.search(rf"`{second}\b", rows[first])]
    assert missing == [], "name each command in the README's row of its first word"


def test_commands_and_options_in_the_docs_exist() -> None:
    """Covers inline code and shell blocks. Shell blocks are not run, because they need a cluster or a person."""
    everything = command_line()
    shell = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    lines = {}
    for page in PAGES:
        text = page.read_text()
        blocks_lines = "".join(shell.findall(text)).replace("\\\n", "").splitlines()
        lines[page.name] = [
            *re.findall(r"`rmqd ([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)),
            *(found[1] for line in blocks_lines if (found := re.match(r"(?:\$ )?rmqd (.*)", line))),
        ]

    def check(place: str) -> None:
        words = re.split(r" (?:--|[#|>&]+)(?: |$)", place.partition(": ")[2])[0].split()
        command: Any = everything
        for word in words:
            command = vars(command).get("commands", {}).get(word, command)
        if hasattr(command, "load"):  # not a group of commands
            command.load()
        known = {name for option in command.params for name in option.opts} | {"--help", "-h"}
        assert words[0].startswith("-") or words[0].isupper() or command.name in words[:2], words
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} <= known

    cases = [f"{page}: {line}" for page, found in lines.items() for line in found]
    assert len(cases) > 300
    assert failing(cases, check) == []


def test_every_option_of_the_handlers_is_described_with_its_default() -> None:
    pages = [(TOP / "docs" / name).read_text() for name in ("handlers.md", "destinations.md")]

    def check(plugin: str) -> None:
        options: type[BaseModel] = EntryPoint(plugin, SHIPPED[plugin], "rmqd.handlers").load().Options
        [text] = [page for page in pages if f"\n## `{plugin}`\n" in page]
        section = text.split(f"\n## `{plugin}`\n")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
        assert rows.keys() == options.model_fields.keys()
        for name, field in options.model_fields.items():
            if field.is_required():
                assert rows[name] == "required", name
            elif isinstance(field.default, str):
                assert rows[name] == (f"`{field.default}`" if field.default else "none"), name

    assert failing(SHIPPED, check) == []


def test_the_settings_of_the_embedded_broker_are_listed_with_their_defaults() -> None:
    rows = {row[0]: row[1] for row in table(TOP / "docs" / "embedded-broker.md", "## Settings")}

    defaults = BrokerSettings().as_properties()
    assert rows == {f"`{name}`": f"`{value}`" if value else "none" for name, value in defaults.items()}


def test_the_options_of_the_embedded_broker_are_listed() -> None:
    rows = table(TOP / "docs" / "embedded-broker.md", "## Running it")
    command: Any = vars(command_line())["commands"]["broker"]
    command.load()

    assert sorted(row[0] for row in rows) == sorted(f"`{one.opts[0]}`" for one in command.params if one.name != "help")


def test_the_exit_codes_of_commands_are_listed() -> None:
    listed = {row[0] for row in table(TOP / "docs" / "operating.md", "## Exit codes")}

    assert {str(int(code)) for code in ExitCode} <= listed


def test_the_exit_codes_for_exec_are_listed() -> None:
    rows = table(TOP / "docs" / "handlers.md", "## `exec`")

    assert [int(row[0].split()[0]) for row in rows[:-1]] == [EXIT_ACK, EXIT_DEAD_LETTER, EXIT_RETRY]


def test_events_that_the_docs_name_are_logged() -> None:
    named = {
        name
        for page in ("troubleshooting", "operating", *HANDLER_PAGES)
        for name in re.findall(r"`([a-z]+(?:_[a-z]+)*\.[a-z]+(?:_[a-z]+)*)`", (TOP / "docs" / f"{page}.md").read_text())
        if name.partition(".")[0] in ("queue", "message", "handler", "send_back", "offset", "group")
    }
    source = "".join(path.read_text() for path in [*(TOP / "rmqd").rglob("*.py"), *(TOP / "handlers").rglob("*.py")])
    not_events = {"handler.concurrency", "handler.options", "handler.processes", "message.msg_id", "message.once"}

    assert {name for name in named - not_events if f'"{name}"' not in source} == set()


def test_metrics_that_the_docs_name_exist() -> None:
    known = TABLES | METRIC_SPECS.keys()
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`(rmqd_[a-z_]+)[`{]", page.read_text())}

    assert {(page, name) for page, name in named if name not in known} == set()


def test_links_lead_to_existing_files_and_headings() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            target, _, heading = link.partition("#")
            path = page.parent / target if target else page
            if "://" not in link and not (path.exists() and (not heading or heading in headings(path))):
                broken.append(f"{page.relative_to(TOP)}: {link}")
    assert broken == []


def test_pages_that_messages_name_exist() -> None:
    """`rmqd --help` names their folder, also if rmqd was installed from a wheel."""
    folders = (TOP / "rmqd", TOP / "handlers")
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    named = {page for source in sources for page in re.findall(r"docs/[\w/-]+\.md", source)}
    assert len(named) > 10
    assert [page for page in sorted(named) if not (TOP / page).exists()] == []
    assert (Path(DOCS) / "security.md").exists()


def test_the_documentation_stays_short() -> None:
    """The limit is for `cat docs/*.md | wc -w`. State each fact once, and link to it."""
    words = {page.name: len(page.read_text().split()) for page in (TOP / "docs").glob("*.md")}

    assert sum(words.values()) <= 70_000, sorted(words.items(), key=lambda item: -item[1])[:10]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_names_in_the_developer_pages_exist_in_the_code() -> None:
    modules = [*(TOP / "rmqd").rglob("*.py"), TOP / "tests" / "test_architecture.py"]
    source = "".join(path.read_text() for path in modules)
    unknown = []
    for page in ("docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"):
        text = (TOP / page).read_text()
        paths = set(re.findall(r"(?:[a-z_]+/)+[a-z_]+\.py|(?<=`)(?:[a-z_]+/){2,}(?=`)", text))
        names = set(re.findall(r"`(?:batch\.)?([A-Za-z]+)(?:\.([a-z_]+))?(?:\(\))?`", text))
        unknown += [(page, path) for path in paths if not ((TOP / "rmqd" / path).exists() or (TOP / path).exists())]
        if page != "CONTRIBUTING.md":  # it also names commands and an author's code
            unknown += [(page, name) for pair in names for name in pair if name not in source]
    assert unknown == []


def test_the_sample_configuration_is_short_and_has_groups() -> None:
    sample = TOP / "config" / "rmqd.yaml"
    lines = [line for line in sample.read_text().splitlines() if line.strip() and not line.startswith("#")]

    assert len(lines) <= 12
    assert yaml.safe_load(sample.read_text())["groups"]


def test_the_docs_list_the_public_api() -> None:
    import rmqd

    sentence = re.search(r"`from rmqd import (.*?)`", (TOP / "docs" / "handlers.md").read_text(), re.DOTALL)
    assert sentence is not None
    assert sorted(" ".join(sentence[1].split()).split(", ")) == sorted(
        set(rmqd.__all__) - {"__version__", "PullConsumer", "SyncPullConsumer"}
    )
