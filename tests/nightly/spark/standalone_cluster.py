"""A standalone Spark cluster on loopback: a master and workers, each a process with a clean environment.

PySpark's wheel has no start scripts for them, but `bin/spark-class` runs their classes. They inherit nothing from the
tests' environment, so that executors find only the files that were sent to them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rmqd.spark.prepare import find_java, provide_java
from tests.spark.fixtures import SHORT_LIFE

START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
MEMORY: Final = "1g"  # for the executors of a worker
DAEMON_MEMORY: Final = "128m"  # for the master, and for each worker
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = "Successfully registered with master"


class StandaloneCluster:
    """A cluster that runs inside the `with` block. Each worker has one core."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._java_home = _java_home()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.master = ""
        """The URL for drivers."""

    def __enter__(self) -> Self:
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.master = self._await("master", _MASTER)
            for number in range(self._workers):
                self.start_worker(number)
            for number in range(self._workers):
                self._await(worker(number), re.compile(f"({_REGISTERED})"))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        for process in self._processes.values():
            _end(process)

    def start_worker(self, number: int) -> None:
        """Start a worker, or restart a killed one."""
        name = worker(number)
        work = self.work_folder(number)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        options = ("--cores", "1", "--memory", MEMORY, "--work-dir", str(work), self.master)
        self._start(name, "org.apache.spark.deploy.worker.Worker", *options)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, with their Python processes, as if its machine crashed."""
        process = self._processes[worker(number)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def work_folder(self, number: int) -> Path:
        """Return the folder where a worker's executors run and write their logs."""
        return self._folder / f"{worker(number)}-work"

    def executors(self, number: int) -> list[Path]:
        """The folders of a worker's executors, of all applications."""
        return sorted(path for path in self.work_folder(number).glob("app-*/*") if path.is_dir())

    def log(self, name: str) -> str:
        """Return the output of the master or of a worker."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str, class_name: str, *arguments: str) -> None:
        import pyspark

        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "JAVA_HOME": self._java_home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-local"),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIFE,
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [program, class_name, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _await(self, name: str, said: re.Pattern[str]) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if found := said.search(self.log(name)):
                return found[1]
            if self._processes[name].poll() is not None:
                break
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"the Spark {name} has not started:\n{self.log(name)[-3000:]}")


def worker(number: int) -> str:
    """Return the worker's name, which is also the name of its log."""
    return f"worker-{number}"


def _java_home() -> str:
    java = find_java(os.environ)
    if java.has_vector_module:
        return str(java.program.resolve().parent.parent)
    provide_java()
    return os.environ["JAVA_HOME"]


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
