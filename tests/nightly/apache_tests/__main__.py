"""`make peer-tests`: run Apache RocketMQ's own integration tests, and write their table."""

from __future__ import annotations

import argparse
import sys
import time

from tests.nightly.apache_tests import module, results
from tests.nightly.apache_tests.run import run
from tests.rocketmq import release
from tests.rocketmq.archives import prepare
from tests.rocketmq.errors import ClusterError, RocketMqUnavailable
from tests.rocketmq.fetch import say


def main() -> int:
    """Run and compare. Returns 1 if a test that passes on a real RocketMQ fails on the embedded broker."""
    options = _options()
    version = release.DEFAULT if options.real else release.EMBEDDED
    began = time.monotonic()
    try:
        prepare(release.DEFAULT)
        classes = [name for name in module.classes() if not options.only or any(part in name for part in options.only)]
        outcomes = run(version, classes, options.jobs)
    except (ClusterError, RocketMqUnavailable) as error:
        say(str(error))
        return 1
    passed = sum(not why for why in outcomes.tests.values())
    print(f"{passed} of {len(outcomes.tests)} passed on {version} in {time.monotonic() - began:.0f} s")
    results.record(version, outcomes, whole=not options.only)
    return results.compare(version, outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.apache_tests", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of class names; what is known of others stays")
    parser.add_argument("--real", action="store_true", help=f"on a real RocketMQ {release.DEFAULT}")
    parser.add_argument("--jobs", type=int, default=3, help="JVMs side by side, each with a cluster (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
