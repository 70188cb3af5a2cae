"""`python -m tests.campaigns churn` runs a campaign, prints its verdict, and adds it to docs/campaigns.md."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.campaigns.churn import Churn, ChurnPlan, ChurnResult
from tests.campaigns.record import append
from tests.rocketmq import ClusterError, RealCluster, RocketMqUnavailable
from tests.rocketmq.archives import prepare
from tests.rocketmq.fetch import say
from tests.rocketmq.spec import FILE_NAME


def churn_plans(seed: int, messages: int) -> list[ChurnPlan]:
    """The whole churn: handlers of up to 1 s, then of 8 s, longer than queue_handover_timeout."""
    return [
        ChurnPlan("up-to-1s", seed, messages, per_second=300),
        ChurnPlan("8s", seed + 1, messages // 10, per_second=100, slow_every=100, slow_seconds=8),
    ]


def churn(options: argparse.Namespace) -> bool:
    """Two rmqd daemons and a Java consumer in one group, joining, leaving and killed -9 under load."""
    directory = Path(options.dir or tempfile.mkdtemp(prefix="rmqd-churn-"))
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    say(
        f"seed {seed}; to go on after an interruption: python -m tests.campaigns churn --seed {seed} --dir {directory}"
    )
    cluster = _cluster(directory / "cluster")
    results: list[ChurnResult] = []
    try:
        for plan in churn_plans(seed, options.messages):
            results.append(Churn(plan, cluster, directory / plan.name).run())
            print(results[-1].report(), flush=True)
    finally:
        cluster.stop()
    append(results)
    return all(result.verdict.passed for result in results)


def _cluster(directory: Path) -> RealCluster:
    prepare()
    if (directory / FILE_NAME).exists():
        cluster = RealCluster.load(directory)
        cluster.up()
        return cluster
    return RealCluster.start(directory=directory)


def main() -> int:
    """0 where the campaign's promises held."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="CAMPAIGN")
    sub = commands.add_parser("churn", help=churn.__doc__, description=churn.__doc__)
    sub.set_defaults(call=churn)
    sub.add_argument("--messages", type=int, default=100_000, help="of the first run (default 100000)")
    sub.add_argument("--seed", type=int, help="of an earlier run, to have the same events again")
    sub.add_argument("--dir", help="where ledgers and logs are kept; that of an interrupted run goes on")
    options = parser.parse_args()
    try:
        return 0 if options.call(options) else 1
    except (ClusterError, RocketMqUnavailable) as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
