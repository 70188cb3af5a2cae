"""The output of Spark's processes, as events of rmqd's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.spark.engine.driver import LogEventBuilder

WARNING = "26/11/21 20:14:14 WARN TaskSetManager: Lost task 0.0 in stage 1.0"
FAILURE = """26/11/21 20:14:15 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x.py", line 1, in read
ValueError: no

\tat org.apache.spark.X.y(X.scala:1)
"""
OURS = '{"timestamp": "2026", "level": "info", "event": "message.handled", "group": "mailer", "logger": "handlers"}'


def read(*parts: str) -> tuple[list[Any], list[str]]:
    """Return the logged events, and the lines that are passed on unchanged."""
    relayed: list[str] = []
    lines = LogEventBuilder(lambda line, values: relayed.append(line), lambda: None)
    with capture_logs() as events:
        for part in parts:
            lines.feed(part.encode())
        lines.end_event()
    return events, relayed


def test_a_line_of_java_is_an_event() -> None:
    """The pipe may split the line anywhere."""
    for parts in ((f"{WARNING}\n",), (WARNING[:5], WARNING[5:], "\n")):
        events, _ = read(*parts)
        assert events == [
            {
                "event": "spark.output_read",
                "log_level": "warning",
                "source": "TaskSetManager",
                "text": "Lost task 0.0 in stage 1.0",
            }
        ]


def test_a_traceback_is_one_event() -> None:
    """It ends at the next event of Java or of rmqd."""
    for after in (f"{WARNING}\n", f"{OURS}\n"):
        events, _ = read(FAILURE, after)
        assert events[0]["log_level"] == "error"
        assert events[0]["source"] == "Executor"
        assert events[0]["text"].splitlines() == [
            "Exception in task 0.0 in stage 1.0 (TID 1)",
            *FAILURE.splitlines()[1:],
        ]


def test_messages_of_every_start_have_the_level_debug() -> None:
    noise = "Using Spark's default log4j profile: x\n26/11/21 20:14:14 WARN Utils: Set SPARK_LOCAL_IP if you need to\n"
    events, _ = read(noise, 'Setting default log level to "WARN".\n')
    assert [event["log_level"] for event in events] == ["debug"] * 3


def test_the_output_of_a_handler_is_logged() -> None:
    """It may look like JSON without being an event."""
    events, relayed = read('{"id": 1}\n')
    assert (events[0]["log_level"], events[0]["text"], relayed) == ("info", '{"id": 1}', [])


def test_log_events_of_handlers_are_passed_on_unchanged() -> None:
    events, relayed = read(f"{OURS}\n", "{broken\n")
    assert relayed == [OURS]
    assert [event["text"] for event in events] == ["{broken"]


PROGRAM = """
import subprocess, sys
from rmqd.runtime.logs import log_setup as logs
from rmqd.spark.engine.driver import flush_stderr_to_log, redirect_stderr_to_log
redirect_stderr_to_log("{form}")
logs.configure_logging("info", "{form}")
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1])", {said!r}], check=True)
import structlog
structlog.get_logger("main").info("main.done")
flush_stderr_to_log()
"""


@pytest.mark.process
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_output_of_a_child_process_is_in_the_log(form: str) -> None:
    """It has the format of the log."""
    program = PROGRAM.format(form=form, said=f"{WARNING}\n{OURS}\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    if form == "json":
        assert {json.loads(line)["event"] for line in lines} == {"spark.output_read", "message.handled", "main.done"}
    else:
        assert any("message.handled" in line and "group=mailer" in line for line in lines)
        assert any("spark.output_read" in line and "source=TaskSetManager" in line for line in lines)
