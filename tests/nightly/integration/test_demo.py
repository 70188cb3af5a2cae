"""`rmqd demo` as a person runs it: on a terminal, in a pipe, until Ctrl-C."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import rmqd
from tests.integration.test_demo import check_sums, figure
from tests.nightly.demo.terminal import TOP, on_terminal

pytestmark = pytest.mark.process

DEMO = [sys.executable, "-m", "rmqd", "demo"]
CTRL_C = "\x03"
ALTERNATE_SCREEN, NORMAL_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;[\d;]+)m")


@pytest.fixture(autouse=True)
def _own_folder_for_what_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo leaves its log in TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_ctrl_c_ends_the_live_view_drains_and_prints_a_summary() -> None:
    with on_terminal(DEMO) as terminal:
        terminal.wait_for("rmqd demo  order-mailer")
        terminal.wait_for(r"orders \d +handling +\d")
        terminal.wait_for(r"order-\d+ .* acked")
        terminal.wait_for("DEAD LETTERS\\s+order-25 +not JSON: ")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0, terminal.text

    view, _, summary = terminal.written.partition(NORMAL_SCREEN)
    assert view.count(ALTERNATE_SCREEN) == 1
    assert "Ctrl-C to end" in view
    assert "draining; Ctrl-C to end at once" in view
    assert COLOURS.search(view)
    assert "rmqd demo ran for" in summary
    assert re.search("1  not JSON: ", summary)
    check_sums(summary.replace("\r", ""))


def test_the_view_shows_a_retry_and_its_ack_within_seconds() -> None:
    """The demo shortens the delay levels, and the view says so."""
    with on_terminal(DEMO, columns=120, lines=40) as terminal:
        terminal.wait_for("retries after 2s, 3s, 4s here instead of 10s, 30s, 1m")
        terminal.wait_for(r"order-\d+ .* paid +retried")
        terminal.wait_for(r"order-\d+ .* paid +(acked|retried) #2")


@pytest.mark.parametrize("limit", [[], ["--messages", "20"]], ids=["Ctrl-C", "--messages"])
def test_ctrl_c_during_the_drain_ends_the_demo_at_once(limit: list[str], tmp_path: Path) -> None:
    config = tmp_path / "rmqd.yaml"
    config.write_text(
        "groups: {stuck: {subscriptions: {orders: '*'}, shutdown_timeout: 10m, "
        "handler: {plugin: 'tests.nightly.demo.endless_handler:handle'}}}"
    )
    with on_terminal([*DEMO, "--config", str(config), *limit]) as terminal:
        if not limit:
            terminal.wait_for(r"orders \d +handling")
            terminal.press(CTRL_C)
        terminal.wait_for("draining; Ctrl-C to end at once")
        terminal.press(CTRL_C)
        assert terminal.wait() == 128 + 2, terminal.text

    assert terminal.written.endswith("rmqd demo: ended before the group had drained\r\n")


@pytest.mark.parametrize("shell", [[], ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]], ids=["SIGHUP", "nohup"])
def test_the_demo_ends_when_its_terminal_closes(shell: list[str]) -> None:
    """Also if SIGHUP is ignored, because the view can no longer be seen."""
    with on_terminal([*shell, *DEMO]) as terminal:
        terminal.wait_for(r"order-\d+ .* acked")
        terminal.close()
        assert terminal.wait() == 0


def test_the_view_follows_the_terminals_size() -> None:
    with on_terminal(DEMO) as terminal:
        terminal.wait_for("LAST HANDLED")
        terminal.resize(120, 30)
        terminal.wait_for("instead of 10s, 30s, 1m")


def test_make_demo_ends_with_success_at_ctrl_c() -> None:
    """Otherwise make would report the Ctrl-C as an error. `-o venv` leaves the installed packages unchanged.

    Variables of a make that runs this test, such as ARGS, must not reach this make.
    """
    with on_terminal(["make", "-o", "venv", "demo"], environment={"MAKEFLAGS": "", "ARGS": ""}) as terminal:
        terminal.wait_for("LAST HANDLED")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0, terminal.text

    assert "rmqd demo ran for" in terminal.text
    assert "Error" not in terminal.text.partition("rmqd demo ran for")[2]


@pytest.mark.parametrize(
    ("variables", "is_live"), [({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)], ids=["NO_COLOR", "TERM=dumb"]
)
def test_a_terminal_without_colours_gets_none(variables: dict[str, str], is_live: bool) -> None:
    with on_terminal([*DEMO, "--messages", "30"], environment=variables) as terminal:
        assert terminal.wait() == 0, terminal.text

    assert (ALTERNATE_SCREEN in terminal.written) == is_live
    assert ("s  catching up: in " in terminal.text) != is_live
    assert not COLOURS.search(terminal.written)
    check_sums(terminal.text.replace("\r", ""))


def test_the_demo_in_a_pipe_writes_plain_lines_and_ends_after_its_time() -> None:
    ended = rmqd("demo", "--seconds", "2")

    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert re.search(r"^embedded RocketMQ at 127\.0\.0\.1:\d+, in memory; group order-mailer", ended.out)
    assert re.search(r"^dead letter order-25: not JSON: ", ended.out, re.MULTILINE), ended.out
    assert re.search(r"^ +1s  running: in \d+/s, out \d+/s, lag \d+, sent \d+", ended.out, re.MULTILINE), ended.out
    assert "\x1b" not in ended.out
    check_sums(ended.out)


def test_the_demo_ends_when_its_output_pipe_closes() -> None:
    """As in `rmqd demo | head -1`, which must leave neither a process nor a traceback."""
    with subprocess.Popen(DEMO, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"embedded RocketMQ at ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_a_group_of_a_configuration_file_gets_the_orders(tmp_path: Path) -> None:
    """Its own handler runs, messages that its filter rejects are counted apart, and its name server is not used."""
    (tmp_path / "mailer.py").write_text("def handle(batch):\n    print('never to be seen in the view')\n")
    (tmp_path / "rmqd.yaml").write_text(
        "nameserver: 192.0.2.1:9876\n"
        "groups: {other: {subscriptions: {a: '*'}, handler: {plugin: log}}, "
        "mailer: {subscriptions: {shop: paid}, handler: {plugin: 'mailer:handle'}}}"
    )

    ended = rmqd("demo", "--messages", "40", "--config", tmp_path / "rmqd.yaml", "--group", "mailer", cwd=tmp_path)

    assert ended.code == 0, ended.err
    assert figure(ended.out, "sent") == 40
    assert 0 < figure(ended.out, "acknowledged") < 40
    assert figure(ended.out, "not subscribed to") == 40 - figure(ended.out, "acknowledged")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--engine", "flink"), 2, "'flink'; expected local or spark"),
        (("--group", "nobody"), 78, "--group nobody: unknown group; expected one of order-mailer"),
        (("--config", "/nowhere.yaml"), 78, "/nowhere.yaml: no such file or folder"),
        (("--messages", "0"), 2, "--messages"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: tuple[str, ...], code: int, told: str) -> None:
    ended = rmqd("demo", *arguments)

    assert (ended.code, ended.out) == (code, "")
    assert told in ended.err


def test_only_the_log_and_the_cluster_id_remain_and_the_summary_names_the_log(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, "--messages", "26"], cwd=TOP, capture_output=True, text=True, check=True)

    named = re.search(r"^  log +(.+)$", done.stdout, re.MULTILINE)
    assert named is not None
    log = Path(named[1])
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {log, log.with_name("cluster-ids.json")}
    assert "message.dead_lettered" in log.read_text()
