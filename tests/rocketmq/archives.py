"""Records class data archives, which cut the start of each RocketMQ process by about a third."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.rocketmq import jvm, release
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.fetch import fetch, home, locked, say
from tests.rocketmq.spec import ClusterSpec

SMALLEST_BYTES = 1 << 20  # an archive below this is the remains of a failed dump


def prepare(version: str | None = None) -> None:
    """Prepare the jars and, if possible, the archives of a version (None: the version that tests use).

    Safe to run twice at once.
    """
    version = version or release.wanted()
    if version == release.EMBEDDED:
        return
    fetch(version)
    with locked(home(version) / ".archives.lock"):
        missing = [kind for kind in ("namesrv", "broker") if not jvm.archive(kind, version).exists()]
        if missing:
            _record(missing, version)


def _record(kinds: list[str], version: str) -> None:
    say(f"recording class data archives of {version} (once, about 20 s)")
    (home(version) / "cds").mkdir(exist_ok=True)
    written = {kind: jvm.archive(kind, version).with_suffix(".new") for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="rmqd-cds-") as directory:
        cluster = RealCluster(Path(directory), ClusterSpec(version=version).with_nodes())
        try:
            cluster.up(timeout_seconds=120, record=written)
            cluster.down(grace_seconds=60)  # a JVM writes its archive at an orderly end
        except (ClusterError, OSError) as error:
            cluster.down(now=True)
            say(f"no class data archives, starts take longer: {error}")
    for kind, path in written.items():
        if path.exists() and path.stat().st_size > SMALLEST_BYTES:
            path.replace(jvm.archive(kind, version))
        else:
            path.unlink(missing_ok=True)
