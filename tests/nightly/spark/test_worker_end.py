"""A callback at the end of a worker process, under the program that starts Spark's workers; without a JVM."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.fixtures import TOP
from tests.spark.needed import need

pytestmark = pytest.mark.process

need("pyspark")

# a task is one number; without a number, the pipe is closed
WORKER = """
import os, sys, time
from rmqd.spark.handlers.handler_tasks import at_worker_end

def say(word):
    with open(os.environ["SAID"], "a") as file:
        file.write(word + "\\n")

def last_word():
    say("begins")
    time.sleep(0.3)
    say("ends")

def main(infile, outfile):
    if len(infile.read(4)) < 4:
        sys.exit(-1)
    at_worker_end(last_word)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    outfile.write(b"done")
"""


@pytest.mark.parametrize("end", ["the session ends", "the JVM is gone"])
def test_the_callback_at_the_end_of_a_worker_is_called_once(tmp_path: Path, end: str) -> None:
    """Spark may end a worker with tasks in several ways. A process that a handler forked does not call it."""
    (tmp_path / "pyspark_stand_in.py").write_text(WORKER)
    said = tmp_path / "said"
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{TOP}", "PYTHON_WORKER_FACTORY_SECRET": "s",
        "SPARK_REUSE_WORKER": "1", "SAID": str(said),
    }  # fmt: skip
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_stand_in"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), 10) as pipe:
            worker = struct.unpack("!i", _exactly(pipe, 4))[0]
            pipe.sendall(struct.pack("!i", 1) + b"s")
            assert _exactly(pipe, 6).endswith(b"ok")
            watch = os.pidfd_open(worker)
            for _ in range(2):
                pipe.sendall(b"task")
                assert _exactly(pipe, 4) == b"done"
            if end == "the session ends":
                pipe.close()
                daemon.terminate()
            else:
                daemon.stdin.close()
            _await_end(watch)
        daemon.terminate()
    assert said.read_text().split() == ["begins", "ends"]


def _exactly(pipe: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += pipe.recv(count - len(data)) or pytest.fail("the worker is gone")
    return data


def _await_end(process: int) -> None:
    import select

    poller = select.poll()
    poller.register(process, select.POLLIN)
    assert poller.poll(10_000), "the worker ends"
    os.close(process)
