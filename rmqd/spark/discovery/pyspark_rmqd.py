"""Makes the format `rocketmq` available in every Spark session, without a call of `rmqd.spark.register`.

Spark imports all top-level modules on its Python path whose names start with `pyspark_`, and registers their
`DefaultSource`. The wheel installs this module at the top level. If the import of this module failed, Spark would not
register the sources of other modules either. So this module warns instead of raising.
"""

from __future__ import annotations

import warnings

from rmqd.errors import RmqdError

try:
    from rmqd.spark import check_versions

    check_versions()
    from rmqd.spark.source.source_format import RocketMQSource as DefaultSource  # noqa: F401
except (ImportError, RmqdError) as error:
    warnings.warn(f"Spark will not know the format rocketmq: {error}", stacklevel=2)
