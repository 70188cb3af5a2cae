"""`python -m bench`: compare rmqd with Java's consumer, the Go client and a raw puller, on a real RocketMQ."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import brokers, commands, contenders, goals, help_time, idle, kit_time, profiling
from bench.contest import ContestError
from bench.job import TLS
from bench.scenarios import SCENARIOS, SWITCHES, Arena, Results, Scenario, say
from tests.rocketmq import ClusterError, RocketMqUnavailable
from tests.rocketmq.archives import prepare

QUICK_MESSAGES = 100_000
QUICK_PACED_SECONDS = 5
ALL_SWITCHES = "switches"
BROKERS_SHARE = 3  # the broker comparison uses a third of the messages, because its bodies are four times as long


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of contenders."""
    chosen = tuple(part.strip() for part in text.split(","))
    unknown = set(chosen) - set(contenders.NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown contender {', '.join(unknown)}; expected some of {', '.join(contenders.NAMES)}"
        )
    return chosen


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    root.add_argument("--messages", type=int, default=300_000, help="messages in a drain (default 300000)")
    root.add_argument("--runs", type=int, default=3, help="runs of each contender in each scenario (default 3)")
    root.add_argument(
        "--only", type=names, default=contenders.NAMES, help="some of the contenders java,go,rmqd,raw,floor"
    )
    root.add_argument(
        "--scenario",
        action="append",
        choices=[*(scenario.name for scenario in SCENARIOS), ALL_SWITCHES, brokers.NAME, commands.NAME, idle.NAME],
        help=f"a scenario; may be given several times; {ALL_SWITCHES}: the scenarios of {', '.join(SWITCHES)}",
    )
    root.add_argument("--paced-seconds", type=int, default=20, help="length of a paced run (default 20)")
    root.add_argument(
        "--patience",
        type=float,
        default=20,
        metavar="SECONDS",
        help="how long a run waits for other work to end; 0: do not wait, and repeat no run (default 20)",
    )
    root.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout with a .venv, whose rmqd runs in turns with this one",
    )
    root.add_argument("--quick", action="store_true", help="a short check: one short run of each")
    root.add_argument("--json", type=Path, metavar="FILE", help="also write every run's figures as JSON")
    kinds = root.add_subparsers(dest="command", metavar="profile|kit")
    sub = kinds.add_parser("profile", help="run only rmqd's drain, under a profiler")
    sub.add_argument(
        "--how", choices=("sample", "trace"), default="sample", help="sample (default), or trace with cProfile"
    )
    sub.add_argument("--batch", type=int, default=1, help="consume_message_batch_max_size (default 1)")
    sub.add_argument("--switch", choices=SWITCHES, default="", help="the switch to turn on")
    sub.add_argument("--orderly", action="store_true", help="consume_mode: orderly")
    kinds.add_parser("kit", help="measure only a handler's test with rmqd.testing; needs no RocketMQ")
    return root


def is_chosen(scenario: Scenario, names: list[str] | None) -> bool:
    """Return whether a scenario is selected; without names, all are."""
    return not names or scenario.name in names or (bool(scenario.switch) and ALL_SWITCHES in names)


def compete(options: argparse.Namespace) -> int:
    """Run the scenarios and print the tables. Returns 1 if a contender failed."""
    if options.quick:
        options.messages, options.runs, options.paced_seconds = QUICK_MESSAGES, 1, QUICK_PACED_SECONDS
        options.patience = 0
    compared = options.messages // BROKERS_SHARE, options.runs, options.patience
    if options.scenario == [brokers.NAME]:
        print(brokers.measure(*compared))
        return 0
    if options.scenario == [commands.NAME]:
        print(commands.measure())
        return 0
    if options.scenario == [idle.NAME]:  # not part of a full run: each run takes 15 minutes
        print(idle.measure(options.runs, options.before))
        return 0
    available = contenders.available()
    for name in set(options.only) - set(available):
        say(f"{name} is skipped: it is not installed here")
    chosen = tuple(name for name in contenders.NAMES if name in options.only and name in available)
    if options.before is not None:
        options.before = options.before.resolve()
        chosen = (*chosen, contenders.BEFORE)
    contenders.build(chosen)
    results = Results()
    for tls in (False, True):
        scenarios = [one for one in SCENARIOS if (one.switch == TLS) == tls and is_chosen(one, options.scenario)]
        if scenarios:
            how = options.messages, options.paced_seconds, options.patience
            with Arena.opened(*how, tls=tls, before=options.before) as arena:
                arena.compete(scenarios, chosen, options.runs, results)
    print(f"medians of {options.runs} runs; {options.messages:,} messages of 256 bytes in 8 queues; 20 threads\n")
    print(goals.medians_table(results), end="\n\n")
    print(goals.goals_table(results), end="\n\n")
    if options.before is not None:
        print(goals.before_table(results), end="\n\n")
    for note in goals.notes(results):
        print(note)
    if not options.scenario or brokers.NAME in options.scenario:
        print(f"\n{brokers.measure(*compared)}\n")
    if not options.scenario or commands.NAME in options.scenario:
        print(f"\n{commands.measure()}\n")
    if "rmqd" in chosen:
        print(help_time.measure())
        print("\n".join(kit_time.measure()))
    if options.json:
        options.json.write_text(json.dumps(goals.as_json(results), indent=1) + "\n")
    return 1 if results.failures else 0


def main() -> int:
    """Run the command. Returns 1, with a line on stderr, if it fails."""
    options = parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    if options.command == "kit":
        print("\n".join(kit_time.measure()))
        return 0
    try:
        if options.scenario != [idle.NAME]:  # `idle` needs no RocketMQ
            prepare()
        if options.command == "profile":
            way = Scenario("", options.batch, 32, ("rmqd",), orderly=options.orderly, switch=options.switch)
            print(profiling.profile(options.messages, way, options.how))
            return 0
        return compete(options)
    except (ClusterError, ContestError, RocketMqUnavailable) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit with an exception, so that the cluster and the contender end too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
