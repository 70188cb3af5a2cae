"""`rmqd test`: cases in YAML, reports of failed cases, and errors in files."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.cli.in_process import rmqd
from tests.testing.user_folder import UserFolder

HANDLERS = """
from pathlib import Path

from rmqd import DeadLetter

BOOK = Path("book.txt")

def handle(batch):
    print("handled", batch[0].keys)
    for message in batch:
        if message.tags == "poison":
            raise KeyError("customer")
        if message.tags == "slow" and message.reconsume_times < 2:
            raise OSError("closed")
        if message.tags == "bad":
            batch.dead_letter(message, "no order at all")

class Books:
    def __init__(self):
        self.total = 0

    def handle(self, batch):
        self.total += len(batch)

WRITTEN = set()

def write_what_is_new(batch):
    for message in batch:
        if message.keys not in WRITTEN:
            WRITTEN.add(message.keys)
            with BOOK.open("a") as file:
                file.write(message.keys + " ")

def read():
    return BOOK.read_text() if BOOK.exists() else ""

def clear():
    BOOK.write_text("")

def write(batch):
    BOOK.write_text(read() + batch[0].keys + " ")

class Unstartable:
    def start(self):
        raise ValueError("no password")

    def handle(self, batch):
        pass
"""
GROUP = """\
group:
  subscriptions: {orders: "*"}
  handler: {plugin: "handlers_of_cases:handle"}
cases:
"""
GOOD = (
    GROUP
    + """\
  all kinds of ends:
    group: {max_reconsume_times: 3}
    messages:
      - {keys: order-1, body: {customer: ada}}
      - {keys: order-2, tags: poison, body: text}
      - {keys: order-3, tags: slow, body: [1, 2], properties: {region: eu}}
      - {tags: bad, body: "4"}
      - {body: later, delay_level: 18}
    expect:
      acked: [order-1, order-3, 5]
      retried: {order-2: 3, order-3: 2}
      dead_letters: {order-2: max_reconsume_times, 4: no order}
  dead letters without their reasons:
    messages: [{tags: bad, body: "1"}]
    expect: {dead_letters: [1]}
"""
)


@pytest.fixture(autouse=True)
def in_the_folder(folder: UserFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "handlers_of_cases", raising=False)
    importlib.invalidate_caches()


@pytest.fixture
def cases(folder: UserFolder) -> UserFolder:
    """Return the folder, which also contains handlers."""
    folder.write("handlers_of_cases.py", HANDLERS)
    return folder


def test_passed_cases_are_reported(cases: UserFolder) -> None:
    cases.write("good.cases.yaml", GOOD)
    ended = rmqd("test")
    assert (ended.code, ended.err) == (0, ended.err)
    assert [line.split("  (")[0] for line in ended.out.splitlines()] == [
        "good.cases.yaml",
        "  ok      all kinds of ends",
        "  ok      dead letters without their reasons",
        "",
        "2 cases: 2 as expected, 0 not",
    ]
    assert "handled order-1" in ended.err, "the output of a handler is written to standard error"


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ("acked: [1]", "order-1: expected acked"),
        ("dead_letters: [1]", "order-1: expected dead-lettered"),
        ("retried: {1: 1}, dead_letters: [1]", "order-1: expected retried, dead-lettered"),
        ("retried: {1: 2}, dead_letters: {1: other}", "order-1: expected retried twice, dead-lettered: other"),
        ("retried: {1: 2}", "order-1: expected retried twice"),
        ("", "order-1: expected never handed to the handler"),
    ],
)
def test_a_failed_case_is_reported_message_by_message(cases: UserFolder, expect: str, told: str) -> None:
    messages = "messages: [{keys: order-1, tags: poison, body: x}]"
    case = f"  a case:\n    group: {{max_reconsume_times: 2}}\n    {messages}\n    expect: {{{expect}}}\n"
    cases.write("bad.cases.yaml", GROUP + case)
    ended = rmqd("test", "bad.cases.yaml")
    assert ended.code == 1
    assert ended.out.splitlines() == [
        "bad.cases.yaml",
        "  FAILED  a case  (bad.cases.yaml:5:3)",
        f"            {told}",
        "                     got retried twice, dead-lettered: max_reconsume_times reached",
        f"                     its handler raised KeyError: 'customer' ({cases.path}/handlers_of_cases.py:12)",
        "",
        "1 case: 0 as expected, 1 not",
    ]


def test_chaos_fails_a_case_whose_handler_is_not_repeatable(cases: UserFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEARCH_SECONDS", "SHORTEN_SECONDS"):  # limits only; the search ends when it has found the history
        monkeypatch.setattr(f"rmqd.testing.chaos.chaos_search.{name}", 120)
    case = (
        "  a case:\n    messages: [{keys: order-1, body: x}, {keys: order-2, body: y}]\n    expect: {acked: [1, 2]}\n"
    )
    cases.write("books.cases.yaml", GROUP.replace(":handle", ":Books") + case)
    assert rmqd("test").code == 0
    ended = rmqd("test", "--chaos")
    assert ended.code == 1
    assert "FAILED  a case" in ended.out
    assert "2. order-1 (orders queue 0)  again, because its offset was not committed: handled" in ended.out
    assert "self.total: 2, expected 1" in ended.out


def test_a_file_without_cases_is_refused(cases: UserFolder) -> None:
    cases.write("bad.cases.yaml", GROUP.rstrip() + " {}\n")
    ended = rmqd("test", "bad.cases.yaml")
    assert (ended.code, ended.out) == (78, "")
    assert "cases: empty; expected one or more cases by name" in ended.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("  a case:\n    messages: []\n    expected: {}\n", "bad.cases.yaml:7:5: cases.a case.expected: unknown key"),
        (
            "  a case:\n    group: {max_reconsume_time: 1}\n    messages: []\n    expect: {}\n",
            "bad.cases.yaml:6:13: groups.bad.max_reconsume_time: unknown key; did you mean max_reconsume_times?",
        ),
        (
            "  a case:\n    messages: [{keys: order-1, body: x}]\n    expect: {acked: [order-2]}\n",
            "bad.cases.yaml:7:22: cases.a case.expect.acked[0]: no message is called 'order-2'; expected order-1",
        ),
        (
            "  a case:\n    messages: [{keys: order-1, body: x}]\n    expect: {retried: {order-2: 1}}\n",
            "bad.cases.yaml:7:24: cases.a case.expect.retried.order-2: no message is called 'order-2'",
        ),
        (
            "  a case:\n    messages: [{body: 17}]\n    expect: {}\n",
            "bad.cases.yaml:6:23: cases.a case.messages[0].body: 17 is not a body; expected text, in quotes",
        ),
        ("  a case:\n    messages: [{}]\n    expect: {}\n", "cases.a case.messages[0].body: missing; expected text"),
        (
            "  a case:\n    group: {handler: {plugin: 'handlers_of_cases:hanlde'}}\n    messages: []\n    expect: {}\n",
            "bad.cases.yaml:6:31: groups.bad.handler.plugin: the module handlers_of_cases has no hanlde",
        ),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_position(cases: UserFolder, text: str, told: str) -> None:
    cases.write("bad.cases.yaml", GROUP + text)
    ended = rmqd("test", "bad.cases.yaml")
    assert (ended.code, ended.out) == (78, "")
    assert told in ended.err
