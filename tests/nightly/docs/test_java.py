"""The Java code in the docs compiles against RocketMQ's client."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests.rocketmq.fetch import find_java, jars
from tests.testing.user_folder import TOP

pytestmark = pytest.mark.rocketmq  # fetches the jars
AROUND = """
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby.MachineRoomResolver;
import org.apache.rocketmq.common.message.*;
class MailServerBusyException extends Exception {} class RowLockedException extends Exception {}
interface Mailer { void send(byte[] body) throws MailServerBusyException; }
interface Book { void apply(List<MessageExt> messages) throws RowLockedException; }
class Rooms implements MachineRoomResolver { %s }
class Listeners { void register(DefaultMQPushConsumer consumer, Mailer mailer, Book book) { %s } }
"""


def test_the_java_code_compiles(tmp_path: Path) -> None:
    pages = [(TOP / "docs" / name).read_text() for name in ("from-java.md", "migrating.md")]
    code = [dedent(text) for page in pages for text in re.findall(r"^ *```java\n(.*?)^ *```", page, re.DOTALL | re.M)]
    methods = [text for text in code if text.startswith("public ")]
    statements = [text for text in code if text not in methods]
    assert (len(methods), len(statements)) == (1, 2)
    (tmp_path / "Page.java").write_text(AROUND % ("\n".join(methods), "\n".join(statements)))

    command = [find_java("javac"), "-d", str(tmp_path), "-cp", ":".join(jars()), str(tmp_path / "Page.java")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
