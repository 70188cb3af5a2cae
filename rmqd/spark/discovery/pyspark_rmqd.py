"""Makes the format `rocketmq` known to every Spark session, without a call of `rmqd.spark.register`.

Spark imports all top-level modules whose names start with `pyspark_`, where its Python finds them, and registers their
`DefaultSource`. The wheel has this one at its top. It raises nothing: one such module that does makes Spark find none
of all others either.
"""

from __future__ import annotations

import warnings

from rmqd.errors import RmqdError

try:
    from rmqd.spark import check_versions

    check_versions()
    from rmqd.spark.format import RocketMQSource as DefaultSource  # noqa: F401
except (ImportError, RmqdError) as error:
    warnings.warn(f"Spark will not know the format rocketmq: {error}", stacklevel=2)
