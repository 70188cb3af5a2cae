"""`make demo`: a real RocketMQ, `rmqd run` with the sample configuration, and a producer; messages arrive at a handler.

On a terminal until Ctrl-C, elsewhere until five messages were sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.rocketmq import ClusterError, RealCluster, RocketMqUnavailable
from tests.rocketmq.archives import prepare
from tests.rocketmq.fetch import say
from tests.rocketmq.spec import HOST, free_port

TOP = Path(__file__).parent.parent.parent
CONFIG = TOP / "config" / "rmqd.yaml"
UNATTENDED_MESSAGES = 5
BETWEEN_SECONDS = 1.0
END_SECONDS = 40.0


def main() -> int:
    """0 after Ctrl-C or the last message; 1 with one line where something is missing."""
    try:
        prepare()
        with ctrl_c_for_us_alone(), RealCluster.start() as cluster:
            return show(cluster)
    except (RocketMqUnavailable, ClusterError) as error:
        say(f"make demo starts a real RocketMQ: {error}")
        return 1
    except KeyboardInterrupt:
        return 0


@contextlib.contextmanager
def ctrl_c_for_us_alone() -> Iterator[None]:
    """Be the terminal's foreground group for a while: `make`, in the one before, would turn Ctrl-C into a failure."""
    if not sys.stdin.isatty():
        yield
        return
    before = os.tcgetpgrp(0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a group in the background may not hand the terminal back otherwise
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(0, before)


def show(cluster: RealCluster) -> int:
    """Run the daemon and the producer side by side."""
    group, topic = sample()
    cluster.create_topic(topic)
    say(f"RocketMQ runs at {cluster.nameserver}; group {group} of {CONFIG.relative_to(TOP)} consumes {topic}.")
    say("Its handler is `log` here, which shows each message. Ctrl-C ends the demo.")
    overrides = (
        f"nameserver={cluster.nameserver}",
        f"groups.{group}.handler={{plugin: log}}",
        f"state_dir={cluster.directory / 'state'}",
        f"http.listen={HOST}:{free_port(set(), (0,))}",
        "log.format=console",
    )
    options = [part for override in overrides for part in ("--set", override)]
    # in a session of its own, so that Ctrl-C reaches us alone and the daemon ends in order, by SIGTERM
    daemon = subprocess.Popen(
        [sys.executable, "-m", "rmqd", "run", "--config", str(CONFIG), *options],
        cwd=cluster.directory,
        start_new_session=True,
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


def sample() -> tuple[str, str]:
    """The sample configuration's first group, and its first topic."""
    groups = yaml.safe_load(CONFIG.read_text())["groups"]
    return next((name, topic) for name, group in groups.items() for topic in group["subscriptions"])


if __name__ == "__main__":
    sys.exit(main())
