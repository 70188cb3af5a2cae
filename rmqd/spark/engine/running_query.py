"""Controls a group's streaming query from an event loop: pauses, waits, stops, and reports a failure in one line.

A call to Spark blocks until the JVM answers, so it runs in a thread, which has one connection to the JVM.

`BatchGate` prevents new micro-batches while the group is paused, stopping or being moved. The query's source runs in
another process, so it checks a file, the pause file. While the file exists, the source starts no micro-batch. Each
method of the gate creates or removes the file. After setting the gate's event `stop`, call `close`.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqd.consumer.pauses import Pauses, PauseScope
from rmqd.errors import RmqdError
from rmqd.runtime.own_threads import SingleThread
from rmqd.spark.pipelines.pipeline_counts import BatchFailedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class BatchGate:
    """Creates and removes the pause file, which prevents new micro-batches. `stop` is set when the group must stop."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.pauses = Pauses()
        self.resumed = asyncio.Event()
        """Set while the group as a whole is not paused."""
        self.was_closed = False
        """Whether the pause file has existed since the last `open`. If so, a bounded query may have left messages."""
        self._stop = stop
        self._file: Path | None = None
        self._is_holding = False
        self.resumed.set()

    @property
    def pause_file(self) -> Path:
        assert self._file is not None
        return self._file

    @contextmanager
    def temporary_folder(self) -> Iterator[None]:
        """Create a temporary folder for the pause file. After the context, pauses are recorded without a file."""
        with tempfile.TemporaryDirectory(prefix="rmqd-spark-", ignore_cleanup_errors=True) as folder:
            self._file = Path(folder) / "pause"
            self._switch()
            try:
                yield
            finally:
                self._file = None

    def pause(self, scope: PauseScope) -> None:
        """Add a pause. Only a pause of the whole group prevents micro-batches."""
        self.pauses.pause(scope)
        self._switch()

    def resume(self, scope: PauseScope) -> None:
        self.pauses.resume(scope)
        self._switch()

    def close(self) -> None:
        """Prevent new micro-batches until `open`. Called when the query must end."""
        self._is_holding = True
        self._switch()

    def open(self) -> None:
        """Allow micro-batches for a new query, unless the group is paused or stopping."""
        self.was_closed = self._is_holding = False
        self._switch()

    def _switch(self) -> None:
        if self.pauses.is_whole_group_paused:
            self.resumed.clear()
        else:
            self.resumed.set()
        if self._file is None:
            return
        if self.pauses.is_whole_group_paused or self._is_holding or self._stop.is_set():
            self.was_closed = True
            self._file.touch()
        else:
            self._file.unlink(missing_ok=True)


WAIT_CALL_SECONDS: Final = 1  # limit for one call of Spark's `awaitTermination`, which cannot be cancelled
MAX_CAUSE_CHARACTERS: Final = 1000
MAX_ERROR_CHARACTERS: Final = 20_000
# Spark's error if a Python worker does not start in 10 s, a limit that is not configurable
LATE_WORKER_TEXT: Final = "Python worker failed to connect back"
# The last line of a Python traceback: `rmqd.errors.DataLossError: data loss in ...`. Spark adds a Java traceback before
# and after the Python traceback. If the source fails, Spark may show just this line, with a text before it.
_PYTHON_ERROR = re.compile(
    r"(?:^|(?<=: )(?=rmqd\.))([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE
)


class QueryFailedError(RmqdError):
    """A query failed. The error's text is the innermost cause; `spark_report` is the text of Spark's exception."""

    def __init__(self, cause: str, said: str) -> None:
        super().__init__(cause)
        self.spark_report = said[:MAX_ERROR_CHARACTERS]

    @property
    def is_late_worker(self) -> bool:
        """Whether the query failed because a Python worker did not start in time, as on a busy machine."""
        return LATE_WORKER_TEXT in self.spark_report


class RunningQuery:
    def __init__(self, query: StreamingQuery, thread: SingleThread) -> None:
        self._query = query
        self._thread = thread
        self._waiting = SingleThread("rmqd.spark.query")

    async def wait(self) -> None:
        """Wait until the query has ended or was stopped. Raises QueryFailedError if the query fails."""
        try:
            while not await self._waiting.call(lambda: self._query.awaitTermination(WAIT_CALL_SECONDS)):
                pass
        except Exception as error:  # noqa: BLE001 Spark's errors have no common base class
            raise query_error(error) from None
        finally:
            self._waiting.end()

    async def is_idle(self) -> bool:
        """Return whether no micro-batch is running. While the pause file exists, an idle query stays idle.

        Raises QueryFailedError if Spark does not answer.
        """
        query = self._query
        try:
            return await self._thread.call(lambda: not query.isActive or not query.status["isTriggerActive"])
        except Exception as error:  # noqa: BLE001 as above
            raise query_error(error) from None

    async def stop(self) -> None:
        """Stop the query and ignore errors. A running micro-batch is aborted, and the next query repeats it."""
        try:
            await self._thread.call(self._query.stop)
        except Exception:  # noqa: BLE001 `wait` reports a failed query, and Spark itself is stopped next
            return


def query_error(error: BaseException) -> QueryFailedError:
    """Return the error that ended a query. Its text is extracted from the many tracebacks of Spark's exception."""
    said = str(error)
    found = _PYTHON_ERROR.findall(said)
    # Spark repeats the cause in wrapping exceptions; the first match is the innermost cause of the first failure
    batch = next((f"; {text}" for name, text in found if name.endswith(".BatchFailedError")), "")
    others = ("pyspark.", "py4j.", BatchFailedError.__module__)
    names = [(name, text) for name, text in found if not name.startswith(others)]
    if names:
        name, text = names[0]
        cause = text if name.startswith("rmqd.") else f"{name}: {text}"
    elif told := [text for name, text in found if name.startswith("pyspark.")]:
        cause = f"Spark: {told[0]}"
    else:
        first = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
        cause = f"Spark: {first}" if first != type(error).__name__ else f"Spark ended with {first}"
    return QueryFailedError(f"{cause[:MAX_CAUSE_CHARACTERS]}{batch}", said)
