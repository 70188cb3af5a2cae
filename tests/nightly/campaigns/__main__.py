"""Run a campaign and record its figures: `python -m tests.nightly.campaigns churn` (--help lists the others)."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from rmqd.errors import RmqdError
from rmqd.runtime.logs.log_setup import configure_logging
from tests.nightly.campaigns.alerts import FACTOR, Alerts
from tests.nightly.campaigns.churn import Churn, ChurnPlan, ChurnResult
from tests.nightly.campaigns.counterparts import COUNTERPARTS
from tests.nightly.campaigns.crash import Crash, CrashPlan
from tests.nightly.campaigns.divisions import BROKER_NAMES
from tests.nightly.campaigns.dlq_replay import DlqReplay, DlqReplayPlan
from tests.nightly.campaigns.durability import Durability, DurabilityPlan
from tests.nightly.campaigns.fault_kinds import KINDS
from tests.nightly.campaigns.fault_series import FaultSeries
from tests.nightly.campaigns.fuzz import Fuzz, FuzzError
from tests.nightly.campaigns.grow import GROUPS, Grow, GrowPlan
from tests.nightly.campaigns.handlers import Handlers, HandlersPlan
from tests.nightly.campaigns.histories import run as run_histories
from tests.nightly.campaigns.lagging_slave import with_slave
from tests.nightly.campaigns.mutant_rooms import ROOMS
from tests.nightly.campaigns.mutants import MutantsError
from tests.nightly.campaigns.mutants import run as run_mutants
from tests.nightly.campaigns.orderly import SLOTS, Orderly, OrderlyError, OrderlyResult, plans
from tests.nightly.campaigns.owners import Owners, OwnersPlan
from tests.nightly.campaigns.planted import recorded_seeds
from tests.nightly.campaigns.planted import run as look_for_planted
from tests.nightly.campaigns.pop import PopCampaign, PopPlan
from tests.nightly.campaigns.record import add_row, append
from tests.nightly.campaigns.simulation import SimulationError
from tests.nightly.campaigns.simulation import run as run_simulation
from tests.nightly.campaigns.spark_cluster import ClusterPlan, SparkCluster
from tests.nightly.campaigns.spark_connect import SparkConnect
from tests.nightly.campaigns.spark_moves import Moves, MovesPlan
from tests.nightly.campaigns.spark_tables import Tables, TablesPlan
from tests.nightly.fuzzing.targets import TARGETS
from tests.nightly.rocketmq import go_peers
from tests.nightly.spark.standalone_cluster import StandaloneCluster
from tests.rocketmq import ClusterError, RealCluster, RocketMqUnavailable
from tests.rocketmq.archives import prepare
from tests.rocketmq.fetch import say
from tests.rocketmq.spec import FILE_NAME, ClusterSpec
from tests.run_guard import guard

CAMPAIGN_ERRORS = (ClusterError, FuzzError, MutantsError, OrderlyError, SimulationError)
MESSAGES_PER_WORKER = 6000  # half a minute of messages for each killed worker


def churn_plans(seed: int, messages: int) -> list[ChurnPlan]:
    """The whole campaign: handlers of up to 1 s, then of 8 s, which is longer than queue_handover_timeout."""
    return [
        ChurnPlan("up-to-1s", seed, messages, per_second=300),
        ChurnPlan("8s", seed + 1, messages // 10, per_second=100, slow_every=100, slow_seconds=8),
    ]


def churn(options: argparse.Namespace) -> bool:
    """Two rmqd daemons and a Java consumer in one group join, leave and are killed -9 under load."""
    directory, seed = _place("churn", f"--messages {options.messages}", options)
    cluster = _cluster(directory / "cluster")
    results: list[ChurnResult] = []
    try:
        for plan in churn_plans(seed, options.messages):
            results.append(Churn(plan, cluster, directory / plan.name).run())
            print(results[-1].report(), flush=True)
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    append(results)
    return all(result.verdict.passed for result in results)


def crash(options: argparse.Namespace) -> bool:
    """An rmqd member and a Java consumer are killed -9 under load: how many messages does each group repeat?"""
    directory = _directory("crash", options)
    seed: int = options.seed if options.seed is not None else random.randrange(10**6)
    say(f"seed {seed}, files in {directory}")
    cluster = _cluster(directory / "cluster")
    results = []
    try:
        for is_orderly in (False, True):
            plan = CrashPlan(seed, options.kills, is_orderly)
            results.append(Crash(plan, cluster, directory / plan.name).run())
            print(results[-1].report(), flush=True)
    finally:
        cluster.stop()
    for result in results:
        add_row("crash", result.cells())
    return all(result.passed for result in results)


def orderly(options: argparse.Namespace) -> bool:
    """An orderly group of rmqd daemons and a Java consumer whose members join, leave and are killed -9 under load."""
    slots = tuple(options.slots.split(","))
    asked = f"--messages {options.messages} --slots {options.slots} --runs {options.runs}"
    directory, seed = _place("orderly", asked, options)
    wanted = options.runs.split(",")
    cluster = _cluster(directory / "cluster")
    results: list[OrderlyResult] = []
    try:
        for plan in (one for one in plans(seed, options.messages, slots) if one.name in wanted):
            results.append(Orderly(plan, cluster, directory / plan.name).run())
            print(results[-1].report(), flush=True)
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    for result in results:
        add_row("orderly", result.cells())
    return all(result.verdict.passed for result in results)


def owners(options: argparse.Namespace) -> bool:
    """Java, Go and rmqd members join and leave, and agree on the owner of every queue with each strategy."""
    go_peers.program()
    directory, seed = _place("owners", f"--changes {options.changes}", options)
    cluster = _cluster(directory / "cluster", ClusterSpec(brokers=len(BROKER_NAMES), broker_names=BROKER_NAMES))
    try:
        result = Owners(OwnersPlan(seed, options.changes), cluster, directory / "run").run()
    finally:
        cluster.stop()
    print(result.report(), flush=True)
    for row in result.rows():
        add_row("owners", row)
    return result.passed


def fuzz(options: argparse.Namespace) -> bool:
    """Coverage-guided inputs (frames, configurations, requests): each must be handled or rejected quickly."""
    what = f"--executions {options.executions} --targets {options.targets}"
    directory, seed = _place("fuzz", what, options)
    passed = True
    for target in options.targets.split(","):
        result = Fuzz(target, options.executions, seed, directory).run()
        print(result.report(), flush=True)
        add_row("fuzz", result.cells())
        passed = passed and result.passed
    return passed


def histories(options: argparse.Namespace) -> bool:
    """Random histories of the offset store (ten times as many) and of hand-overs, with responses in any order."""
    seed: int = options.seed if options.seed is not None else 1
    results = [run_histories("offsets", seed, 10 * options.count), run_histories("hand_over", seed, options.count)]
    for result in results:
        print(result.report(), flush=True)
        add_row("histories", result.cells())
    return all(result.passed for result in results)


def simulation(options: argparse.Namespace) -> bool:
    """Simulated hosts run groups and brokers with seeded faults: no loss, and a reason for each repetition."""
    directory, seed = _place("simulation", f"--count {options.count}", options)
    result = run_simulation(seed, options.count, directory)
    print(result.report(), flush=True)
    add_row("simulation", result.cells())
    return not result.wrong


def planted(options: argparse.Namespace) -> bool:
    """Bugs are planted in rmqd, one at a time: histories on simulated hosts must reveal each of them."""
    directory, seed = _place("planted", f"--count {options.count}", options)
    result = look_for_planted(seed, options.count, directory, first_seeds=recorded_seeds())
    print(result.report(), flush=True)
    add_row("planted", result.cells())
    result.write()
    return not result.missed


def faults(options: argparse.Namespace) -> bool:
    """Two rmqd daemons share a group while brokers and name servers die, hang, move or fail over, one at a time."""
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise ClusterError(f"no fault {', '.join(sorted(unknown))}; accepted: {', '.join(KINDS)}")
    directory, seed = _place("faults", f"--times {options.times} --kinds {options.kinds}", options)
    prepare()
    series = FaultSeries(kinds, options.times, seed, directory)
    series.run()
    return series.passed


def durability(options: argparse.Namespace) -> bool:
    """`rmqd broker --data-dir` is killed -9 under load many times: everything acknowledged must survive."""
    directory, seed = _place("durability", f"--kills {options.kills}", options)
    result = Durability(DurabilityPlan(seed, options.kills), directory).run()
    print(result.report(), flush=True)
    add_row("durability", result.cells())
    return result.passed


def pop(options: argparse.Namespace) -> bool:
    """A POP group drains a topic while members are killed -9, then switches to PULL and back under load."""
    directory = _directory("pop", options)
    seed: int = options.seed if options.seed is not None else random.randrange(10**6)
    say(f"seed {seed}, files in {directory}")
    cluster = _cluster(directory / "cluster")
    plan = PopPlan(
        "drain", seed, options.messages, options.kills, switched=options.switches * 4000, switches=options.switches
    )
    try:
        result = PopCampaign(plan, cluster, directory / "run").run()
    finally:
        cluster.stop()
    print(result.report(), flush=True)
    add_row("pop", result.cells())
    return result.passed


def dlq_replay(options: argparse.Namespace) -> bool:
    """`rmqd dlq replay` is killed -9 and resumed, for a concurrent group and for an orderly group with locks."""
    directory = _directory("dlq_replay", options)
    seed: int = options.seed if options.seed is not None else random.randrange(10**6)
    say(f"seed {seed}, files in {directory}")
    configure_logging("critical", "console")  # each dead letter would log a line
    cluster = _cluster(directory / "cluster")
    results = []
    try:
        for name in ("concurrent", "orderly"):
            plan = DlqReplayPlan(name, seed, options.letters, options.kills, orderly=name == "orderly")
            results.append(DlqReplay(plan, cluster, directory / name).run())
            print(results[-1].report(), flush=True)
    finally:
        cluster.stop()
    for result in results:
        add_row("dlq_replay", result.cells())
    return all(result.passed for result in results)


def handlers(options: argparse.Namespace) -> bool:
    """The systems that handlers write to, such as databases, are killed -9 and restarted under load: no loss."""
    directory = _directory("handlers", options)
    seed: int = options.seed if options.seed is not None else random.randrange(10**6)
    names = options.counterparts.split(",")
    if unknown := set(names) - set(COUNTERPARTS):
        raise ClusterError(f"no counterpart {', '.join(sorted(unknown))}; accepted: {', '.join(COUNTERPARTS)}")
    say(f"seed {seed}, files in {directory}")
    cluster = _cluster(directory / "cluster")
    results = []
    try:
        for name in names:
            plan = HandlersPlan(name, seed, options.messages, options.kills, options.daemon_kills)
            results.append(Handlers(plan, cluster, directory / name).run())
            print(results[-1].report(), flush=True)
            add_row("handlers", results[-1].cells())
    finally:
        cluster.stop()
    return all(result.passed for result in results)


def mutants(options: argparse.Namespace) -> bool:
    """Small faults in the modules that keep rmqd's promises, one at a time: tests must detect nine of ten."""
    rooms = options.rooms.split(",")
    if unknown := set(rooms) - set(ROOMS):
        raise MutantsError(f"no room {', '.join(sorted(unknown))}; accepted: {', '.join(ROOMS)}")
    directory = _directory("mutants", options)
    command = (
        f"python -m tests.nightly.campaigns mutants --rooms {options.rooms} --every {options.every} --dir {directory}"
    )
    say(f"to resume after an interruption: {command}")
    passed = True
    for room in rooms:
        result = run_mutants(room, directory, options.every)
        print(result.report(), flush=True)
        add_row("mutants", result.cells())
        passed &= result.passed
    return passed


def alerts(options: argparse.Namespace) -> bool:
    """Each shipped alert rule fires for a real fault and resolves, in a real Prometheus with shorter times."""
    directory = _directory("alerts", options)
    cluster = _cluster(directory / "cluster")
    try:
        result = Alerts(cluster, directory / "run", options.factor).run()
    finally:
        cluster.stop()
    print(result.report(), flush=True)
    add_row("alerts", result.cells())
    return result.passed


def grow(options: argparse.Namespace) -> bool:
    """A topic gets more queues and a second broker under load: running, stopped and Spark groups lose nothing."""
    directory, seed = _place("grow", f"--groups {options.groups}", options)
    groups = tuple(options.groups.split(","))
    if unknown := set(groups) - set(GROUPS):
        raise ClusterError(f"no group {', '.join(sorted(unknown))}; accepted: {', '.join(GROUPS)}")
    cluster = _cluster(directory / "cluster", ClusterSpec(brokers=2))
    try:
        result = Grow(GrowPlan(seed, groups), cluster, directory / "run").run()
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    print(result.report(), flush=True)
    add_row("grow", result.cells())
    return result.passed


def spark_moves(options: argparse.Namespace) -> bool:
    """A group moves from engine: local to engine: spark and back while messages are sent."""
    directory, seed = _place("spark_moves", f"--moves {options.moves}", options)
    cluster = _cluster(directory / "cluster", with_slave())
    try:
        result = Moves(MovesPlan(seed, options.moves), cluster, directory / "run").run()
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    print(result.report(), flush=True)
    add_row("spark_moves", result.cells())
    return result.passed


def spark_kills(options: argparse.Namespace) -> bool:
    """Groups on a Spark cluster drain a topic while drivers, executors and the broker are killed -9."""
    # imports PySpark, which the other campaigns do not need
    from tests.nightly.campaigns.spark_kills import BROKER, DRIVER, EXECUTOR, Kills, KillsPlan

    directory, seed = _place("spark_kills", f"--messages {options.messages} --kills {options.kills}", options)
    victims = [(DRIVER, EXECUTOR, BROKER)[number % 3] for number in range(options.kills)]
    cluster = _cluster(directory / "cluster", with_slave())
    try:
        with StandaloneCluster(directory / "spark") as spark:
            plan = KillsPlan(seed, options.messages, victims)
            result = Kills(plan, cluster, directory / "run", spark).run()
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    print(result.report(), flush=True)
    add_row("spark_kills", result.cells())
    return result.passed


def spark_tables(options: argparse.Namespace) -> bool:
    """Pipelines from YAML drain topics into PostgreSQL while rmqd and PostgreSQL are killed -9: correct tables."""
    what = f"--messages {options.messages} --kills {options.kills} --database-kills {options.database_kills}"
    directory, seed = _place("spark_tables", what, options)
    configure_logging("critical", "console")  # each resent message would log a line
    cluster = _cluster(directory / "cluster")
    try:
        plan = TablesPlan(seed, options.messages, options.kills, options.database_kills)
        result = Tables(plan, cluster, directory / "run").run()
    finally:
        cluster.stop(now=False)  # an orderly stop keeps all commits for a resumed run
    print(result.report(), flush=True)
    add_row("spark_tables", result.cells())
    return result.passed


def spark_cluster(options: argparse.Namespace) -> bool:
    """A group runs on a standalone Spark cluster whose workers are killed and restarted."""
    directory, seed = _place("spark_cluster", f"--kills {options.kills}", options)
    plan = ClusterPlan(seed, messages=options.kills * MESSAGES_PER_WORKER, kills=options.kills)
    result = SparkCluster(plan, directory / "run").run()
    print(result.report(), flush=True)
    add_row("spark_cluster", result.cells())
    return result.passed


def spark_connect(options: argparse.Namespace) -> bool:
    """The Spark source and sink work through Spark Connect; needs `pip install 'pyspark[connect]'`."""
    directory = tempfile.mkdtemp(prefix="rmqd-spark_connect-", dir=options.dir)
    result = SparkConnect(options.messages, Path(directory)).run()
    print(result.report(), flush=True)
    add_row("spark_connect", result.cells())
    return result.passed


def _directory(campaign: str, options: argparse.Namespace) -> Path:
    """Return the directory of a run. Other users may enter it: servers that refuse root run as their own user."""
    if options.dir:
        return Path(options.dir)
    directory = Path(tempfile.mkdtemp(prefix=f"rmqd-{campaign}-"))
    directory.chmod(0o711)
    return directory


def _place(campaign: str, size: str, options: argparse.Namespace) -> tuple[Path, int]:
    """Return the directory and the seed of a run, and print the command that resumes it."""
    directory = _directory(campaign, options)
    seed: int = options.seed if options.seed is not None else random.randrange(10**6)
    command = f"python -m tests.nightly.campaigns {campaign} {size} --seed {seed} --dir {directory}"
    say(f"seed {seed}; to go on after an interruption: {command}")
    return directory, seed


def _cluster(directory: Path, spec: ClusterSpec | None = None) -> RealCluster:
    prepare()
    if (directory / FILE_NAME).exists():
        cluster = RealCluster.load(directory)
        cluster.up()
        return cluster
    return RealCluster.start(spec, directory=directory)


def main() -> int:
    """Return 0 if the campaign kept its promises."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.campaigns", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="CAMPAIGN")
    for call, what, default in (
        (churn, "messages", 100_000),
        (crash, "kills", 5),
        (orderly, "messages", 90_000),
        (owners, "changes", 50),
        (fuzz, "executions", 1_000_000),
        (dlq_replay, "letters", 10_000),
        (durability, "kills", 100),
        (faults, "times", 3),
        (handlers, "messages", 20_000),
        (histories, "count", 2000),
        (planted, "count", 100),
        (pop, "messages", 100_000),
        (simulation, "count", 20_000),
        (spark_cluster, "kills", 5),
        (spark_connect, "messages", 10_000),
        (spark_kills, "messages", 200_000),
        (spark_moves, "moves", 20),
        (spark_tables, "messages", 30_000),
    ):
        sub = commands.add_parser(call.__name__, help=call.__doc__, description=call.__doc__)
        sub.set_defaults(call=call)
        sub.add_argument(f"--{what}", type=int, default=default, help=f"how many (default {default})")
        sub.add_argument("--seed", type=int, help="of an earlier run, to have the same again")
        goes_on = "" if call in (crash, dlq_replay, handlers, pop) else "; that of an interrupted run goes on"
        sub.add_argument("--dir", help=f"where a run keeps its files{goes_on}")
        if call is spark_kills:
            sub.add_argument("--kills", type=int, default=10, help="how many are killed (default %(default)s)")
        if call is spark_tables:  # three groups, at five moments
            sub.add_argument("--kills", type=int, default=15, help="how often rmqd is killed (default %(default)s)")
            sub.add_argument(
                "--database-kills", type=int, default=3, help="how often PostgreSQL is (default %(default)s)"
            )
        if call is dlq_replay:
            sub.add_argument("--kills", type=int, default=5, help="how often it is killed (default %(default)s)")
        if call is handlers:
            every = ",".join(COUNTERPARTS)
            sub.add_argument("--kills", type=int, default=5, help="how often each is killed (default %(default)s)")
            sub.add_argument("--daemon-kills", type=int, default=0, help="how often rmqd is (default %(default)s)")
            sub.add_argument("--counterparts", default=every, help="which, with commas (default %(default)s)")
        if call is pop:
            sub.add_argument("--kills", type=int, default=12, help="how many members are killed (default %(default)s)")
            sub.add_argument("--switches", type=int, default=6, help="how often the mode changes (default %(default)s)")
        if call is faults:
            sub.add_argument("--kinds", default=",".join(KINDS), help="which, with commas (default %(default)s)")
        if call is fuzz:
            sub.add_argument("--targets", default=",".join(TARGETS), help="which, with commas (default %(default)s)")
        if call is orderly:
            sub.add_argument(
                "--slots",
                default=",".join(SLOTS),
                help="who comes and goes: rmqd-… or java-…, with commas (default %(default)s)",
            )
            runs = ",".join(plan.name for plan in plans(0, 0))
            sub.add_argument("--runs", default=runs, help="which, with commas (default %(default)s)")
    sub = commands.add_parser(grow.__name__, help=grow.__doc__, description=grow.__doc__)
    sub.set_defaults(call=grow)
    sub.add_argument("--groups", default=",".join(GROUPS), help="which, with commas (default %(default)s)")
    sub.add_argument("--seed", type=int, help="of an earlier run, to have the same again")
    sub.add_argument("--dir", help="where a run keeps its files; that of an interrupted run goes on")
    sub = commands.add_parser(alerts.__name__, help=alerts.__doc__, description=alerts.__doc__)
    sub.set_defaults(call=alerts)
    sub.add_argument("--factor", type=float, default=FACTOR, help="what all times are divided by (default %(default)s)")
    sub.add_argument("--dir", help="where a run keeps its files")
    sub = commands.add_parser(mutants.__name__, help=mutants.__doc__, description=mutants.__doc__)
    sub.set_defaults(call=mutants)
    sub.add_argument("--rooms", default=",".join(ROOMS), help="which, with commas (default %(default)s)")
    sub.add_argument("--every", type=int, default=1, metavar="N", help="judge every N-th mutant (default: all)")
    sub.add_argument("--dir", help="where a run keeps its files; that of an earlier run judges again what could differ")
    options = parser.parse_args()
    options.dir = str(_directory(options.call.__name__, options))  # it stays, unlike temporary files of the guarded run
    guard()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which also ends members and brokers
    try:
        return 0 if options.call(options) else 1
    except (*CAMPAIGN_ERRORS, RmqdError, RocketMqUnavailable) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
