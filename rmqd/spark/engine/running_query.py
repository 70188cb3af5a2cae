"""A streaming query as the event loop sees it: waited for, ended, and what it failed by in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rmqd.errors import RmqdError
from rmqd.spark.engine.spark_thread import SparkThread

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS: Final = 1  # Spark's own waiting cannot be cut short from here
MOST_CHARACTERS: Final = 1000
MOST_SAID: Final = 20_000
# The end of a Python traceback: `rmqd.errors.DataLossError: data loss in ...`. Spark puts Java's around it.
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


class QueryFailedError(RmqdError):
    """A query ended by an error. The text is the innermost cause, `said` all that Spark tells."""

    def __init__(self, cause: str, said: str) -> None:
        super().__init__(cause)
        self.said = said[:MOST_SAID]


class RunningQuery:
    """A query between its start and its end."""

    def __init__(self, query: StreamingQuery, thread: SparkThread) -> None:
        self._query = query
        self._thread = thread
        self._waiting = SparkThread("rmqd.spark.query")

    async def wait(self) -> None:
        """Until it has ended by itself, as one that handles what is there does. Raises QueryFailedError."""
        try:
            while not await self._waiting.call(lambda: self._query.awaitTermination(WAIT_SECONDS)):
                pass
        except Exception as error:  # noqa: BLE001 Spark's errors have no common base of their own
            raise query_error(error) from None
        finally:
            self._waiting.end()

    async def is_idle(self) -> bool:
        """Whether no micro-batch is under way. With the pause file in place none begins any more, either.

        Raises QueryFailedError where Spark does not answer any more.
        """
        try:
            return await self._thread.call(self._is_idle)
        except Exception as error:  # noqa: BLE001 as above
            raise query_error(error) from None

    async def stop(self) -> None:
        """End it: a micro-batch under way is given up, and repeated at the next start. Raises nothing."""
        try:
            await self._thread.call(self._query.stop)
        except Exception:  # noqa: BLE001 it has failed, or hangs: what matters is in `wait`, and the session ends next
            return

    def _is_idle(self) -> bool:
        return not self._query.isActive or not self._query.status["isTriggerActive"]


def query_error(error: BaseException) -> QueryFailedError:
    """What ended a query, from what Spark raises: pages of Java and Python tracebacks."""
    said = str(error)
    found = _PYTHON_ERROR.findall(said)
    # Spark repeats the cause in what wraps it; the first one is the innermost of the first failure
    names = [(name, text) for name, text in found if not name.startswith(("pyspark.", "py4j."))]
    if names:
        name, text = names[0]
        cause = text if name.startswith("rmqd.") else f"{name}: {text}"
    else:
        first = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
        cause = f"Spark: {first}" if first != type(error).__name__ else f"Spark ended with {first}"
    return QueryFailedError(cause[:MOST_CHARACTERS], said)
