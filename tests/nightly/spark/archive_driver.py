"""A driver process of the archive pipeline that kills itself with SIGKILL in the middle of a batch.

`python -m tests.nightly.spark.archive_driver NAMESERVER FOLDER MOVES` kills itself after so many files were moved.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rmqd.spark.engine.checkpoint_generations import generations_of
from rmqd.spark.session.hadoop_folder import HadoopFolder
from tests.spark.group_queries import SECONDS, kept_order, start_generation


def main(nameserver: str, folder: Path, moves: int) -> None:
    """Run the pipeline until the process kills itself."""
    from rmqd.spark.prepare import prepare
    from tests.spark.fixtures import CONF

    prepare()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(map={**CONF}).getOrCreate()
    left, move = moves, HadoopFolder.move

    def mortal(self: HadoopFolder, path: str, target: HadoopFolder, target_path: str) -> None:
        nonlocal left
        if path.endswith(".parquet"):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        move(self, path, target, target_path)

    HadoopFolder.move = mortal  # type: ignore[method-assign]
    order = kept_order(nameserver, folder)
    start_generation(session, order, folder, generations_of(order, session).prepare_generation()).awaitTermination(
        SECONDS
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
