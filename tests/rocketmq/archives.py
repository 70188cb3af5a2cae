"""Records class data archives, which cut the start of each RocketMQ process by about a third."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.rocketmq import jvm
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.fetch import fetch, home, locked, say
from tests.rocketmq.spec import ClusterSpec

SMALLEST_BYTES = 1 << 20  # an archive below this is the remains of a failed dump


def prepare() -> None:
    """Everything a cluster needs: the jars, and the archives where they can be had. Safe to run twice at once."""
    fetch()
    with locked(home() / ".archives.lock"):
        wanted = [kind for kind in ("namesrv", "broker") if not jvm.archive(kind).exists()]
        if wanted:
            _record(wanted)


def _record(kinds: list[str]) -> None:
    say("recording class data archives (once, about 20 s)")
    (home() / "cds").mkdir(exist_ok=True)
    written = {kind: jvm.archive(kind).with_suffix(".new") for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="rmqd-cds-") as directory:
        cluster = RealCluster(Path(directory), ClusterSpec().with_nodes())
        try:
            cluster.up(timeout_seconds=120, record=written)
            cluster.down(grace_seconds=60)  # a JVM writes its archive at an orderly end
        except (ClusterError, OSError) as error:
            cluster.down(now=True)
            say(f"no class data archives, starts take longer: {error}")
    for kind, path in written.items():
        if path.exists() and path.stat().st_size > SMALLEST_BYTES:
            path.replace(jvm.archive(kind))
        else:
            path.unlink(missing_ok=True)
