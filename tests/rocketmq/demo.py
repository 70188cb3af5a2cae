"""`make demo`: a real RocketMQ, `rmqd run` with the sample configuration, and a producer; messages arrive at a handler.

On a terminal until Ctrl-C, elsewhere until ten messages were sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.rocketmq import ClusterError, RealCluster, RocketMqUnavailable
from tests.rocketmq.archives import prepare
from tests.rocketmq.fetch import say

TOP = Path(__file__).parent.parent.parent
CONFIG = TOP / "config" / "rmqd.yaml"
UNATTENDED_MESSAGES = 10
BETWEEN_SECONDS = 1.0
END_SECONDS = 40.0


def main() -> int:
    """0 after Ctrl-C or the last message; 1 with one line where something is missing."""
    try:
        prepare()
        with RealCluster.start() as cluster:
            return show(cluster)
    except (RocketMqUnavailable, ClusterError) as error:
        say(f"make demo starts a real RocketMQ: {error}")
        return 1
    except KeyboardInterrupt:
        return 0


def show(cluster: RealCluster) -> int:
    """Run the daemon and the producer side by side."""
    topic = cluster.create_topic(sample_topic())
    say(f"RocketMQ runs at {cluster.nameserver}; rmqd consumes {topic} with {CONFIG.relative_to(TOP)}. Ctrl-C ends it.")
    overrides = ("--set", f"nameserver={cluster.nameserver}", "--set", f"state_dir={cluster.directory / 'state'}")
    # in a session of its own, so that Ctrl-C reaches us alone and the daemon ends in order, by SIGTERM
    daemon = subprocess.Popen(
        [sys.executable, "-m", "rmqd", "run", "--config", str(CONFIG), *overrides], cwd=TOP, start_new_session=True
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            send(cluster, topic, daemon)
    finally:
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(END_SECONDS)
    return status


def send(cluster: RealCluster, topic: str, daemon: subprocess.Popen[bytes]) -> None:
    """A message a second by `rmqd send`."""
    numbers = itertools.count(1) if sys.stdout.isatty() else range(1, UNATTENDED_MESSAGES + 1)
    for number in numbers:
        if daemon.poll() is not None:
            raise ClusterError(f"rmqd ended with status {daemon.returncode}")
        body = f"order {number} of the demo"
        options = ("--keys", f"order-{number}", "--tags", "paid", "--nameserver", cluster.nameserver)
        subprocess.run(
            [sys.executable, "-m", "rmqd", "send", topic, body, *options],
            cwd=TOP,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        time.sleep(BETWEEN_SECONDS)


def sample_topic() -> str:
    """The first topic of the sample configuration."""
    import yaml

    groups = yaml.safe_load(CONFIG.read_text())["groups"]
    return next(str(topic) for group in groups.values() for topic in group["subscriptions"])


if __name__ == "__main__":
    sys.exit(main())
