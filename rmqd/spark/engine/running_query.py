"""A streaming query for an event loop: wait for it, end it, and report its failure in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rmqd.errors import RmqdError
from rmqd.spark.engine.spark_thread import SparkThread
from rmqd.spark.pipelines.micro_batch import BatchFailedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS: Final = 1  # for each call of Spark's own wait, which cannot be cancelled
MOST_CHARACTERS: Final = 1000
MOST_SAID: Final = 20_000
LATE_WORKER: Final = "Python worker failed to connect back"  # Spark waits 10 s for a worker, which is not configurable
# The last line of a Python traceback: `rmqd.errors.DataLossError: data loss in ...`. Spark wraps a Java traceback
# around it. For an error of the source it may show only this line, after its own words.
_PYTHON_ERROR = re.compile(
    r"(?:^|(?<=: )(?=rmqd\.))([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE
)


class QueryFailedError(RmqdError):
    """A query ended with an error. The text is the innermost cause; `said` is everything that Spark reports."""

    def __init__(self, cause: str, said: str) -> None:
        super().__init__(cause)
        self.said = said[:MOST_SAID]

    @property
    def is_late_worker(self) -> bool:
        """Whether the only failure is that a Python process did not start in time, as on a busy machine."""
        return LATE_WORKER in self.said


class RunningQuery:
    """A query between its start and its end."""

    def __init__(self, query: StreamingQuery, thread: SparkThread) -> None:
        self._query = query
        self._thread = thread
        self._waiting = SparkThread("rmqd.spark.query")

    async def wait(self) -> None:
        """Wait until the query ends on its own, like a bounded query. Raises QueryFailedError."""
        try:
            while not await self._waiting.call(lambda: self._query.awaitTermination(WAIT_SECONDS)):
                pass
        except Exception as error:  # noqa: BLE001 Spark's errors have no common base class
            raise query_error(error) from None
        finally:
            self._waiting.end()

    async def is_idle(self) -> bool:
        """Return whether no micro-batch is running. While the pause file exists, none starts.

        Raises QueryFailedError if Spark does not answer.
        """
        try:
            return await self._thread.call(self._is_idle)
        except Exception as error:  # noqa: BLE001 as above
            raise query_error(error) from None

    async def stop(self) -> None:
        """End the query. The current micro-batch is aborted, and repeated at the next start. Raises nothing."""
        try:
            await self._thread.call(self._query.stop)
        except Exception:  # noqa: BLE001 it failed or hangs: `wait` reports the failure, and the session ends next
            return

    def _is_idle(self) -> bool:
        return not self._query.isActive or not self._query.status["isTriggerActive"]


def query_error(error: BaseException) -> QueryFailedError:
    """Return the error that ended a query, extracted from Spark's exception with its pages of tracebacks."""
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
    return QueryFailedError(f"{cause[:MOST_CHARACTERS]}{batch}", said)
