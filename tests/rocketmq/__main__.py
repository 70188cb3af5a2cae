"""`python -m tests.rocketmq`: a real RocketMQ on 127.0.0.1, for manual use and for the benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.rocketmq import release
from tests.rocketmq.archives import prepare
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError, RocketMqUnavailable
from tests.rocketmq.fetch import say
from tests.rocketmq.spec import FILE_NAME, ClusterSpec

Command = Callable[[argparse.Namespace], None]


def fetch(options: argparse.Namespace) -> None:
    """Fetch the jars and record class data archives, once per machine and version."""
    prepare(options.version)


def start(options: argparse.Namespace) -> None:
    """Start a cluster in the background; prints NAMESRV=, BROKER= and DIR= for eval."""
    prepare(options.version)
    directory = Path(options.dir) if options.dir else None
    if directory and (directory / FILE_NAME).exists():
        cluster = RealCluster.load(directory)
        cluster.up()
    else:
        spec = ClusterSpec(
            version=options.version,
            brokers=options.brokers,
            slaves=options.slaves,
            controller=options.controller,
            name_servers=options.name_servers,
            acl=options.acl,
            tls=options.tls,
            heap=options.heap,
            settings=dict(options.set),
            namesrv_port=options.namesrv_port,
            broker_port=options.broker_port,
        )
        cluster = RealCluster.start(spec, directory)
    print(f"NAMESRV={cluster.nameservers}\nBROKER={cluster.broker.address}\nDIR={cluster.directory}")


def stop(options: argparse.Namespace) -> None:
    """Stop a cluster in order (11 s), or by SIGKILL with --now."""
    RealCluster.load(options.dir).stop(now=options.now, remove=options.rm)


def status(options: argparse.Namespace) -> None:
    """A line per node; exit status 1 unless all work."""
    cluster = RealCluster.load(options.dir)
    problems = 0
    for node in cluster.nodes:
        verdict = node.state
        if verdict == "running":
            try:
                cluster.check(node)
                verdict = "works"
            except (OSError, ClusterError) as error:
                verdict = f"running, but {error}"
        problems += verdict != "works"
        print(f"{node.name} {node.address} pid {node.pid or '-'}: {verdict}")
    if problems:
        raise ClusterError(f"{problems} of {len(cluster.nodes)} nodes do not work")


def topic(options: argparse.Namespace) -> None:
    """Create or change a topic on every master."""
    RealCluster.load(options.dir).create_topic(options.name, options.queues)


def kill(options: argparse.Namespace) -> None:
    """kill -9 a node: namesrv, broker (the first master), slave, or its name."""
    RealCluster.load(options.dir).kill(options.node)


def pause(options: argparse.Namespace) -> None:
    """SIGSTOP a node."""
    RealCluster.load(options.dir).pause(options.node)


def resume(options: argparse.Namespace) -> None:
    """SIGCONT a paused node."""
    RealCluster.load(options.dir).resume(options.node)


def restart(options: argparse.Namespace) -> None:
    """End nodes (default: all) and start them again; --set changes broker settings."""
    RealCluster.load(options.dir).restart(*options.node, now=options.now, settings=dict(options.set))


def admin(options: argparse.Namespace) -> None:
    """Run the official mqadmin, for example: admin DIR consumerProgress -g my-group."""
    cluster = RealCluster.load(options.dir)
    try:
        print(cluster.admin(*options.arguments), end="")
    finally:
        cluster.end_admin()


def setting(text: str) -> tuple[str, str]:
    """KEY=VALUE as a pair."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"wants KEY=VALUE, not {text!r}")
    return key, value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m tests.rocketmq", description="A real Apache RocketMQ on 127.0.0.1.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    def add(call: Command, *, directory: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(call.__name__, help=call.__doc__, description=call.__doc__)
        sub.set_defaults(call=call)
        if directory:
            sub.add_argument("dir", type=Path, help="the cluster's directory, as `start` printed it")
        return sub

    sub = add(fetch, directory=False)
    sub.add_argument(
        "version", nargs="?", default=release.wanted(), choices=release.RELEASES, help="default %(default)s"
    )
    _start_options(add(start, directory=False))
    sub = add(stop)
    sub.add_argument("--now", action="store_true", help="SIGKILL at once")
    sub.add_argument("--rm", action="store_true", help="delete the directory afterwards")
    add(status)
    sub = add(topic)
    sub.add_argument("name")
    sub.add_argument("--queues", type=int, default=8)
    for call in (kill, pause, resume):
        add(call).add_argument("node")
    sub = add(restart)
    sub.add_argument("node", nargs="*")
    sub.add_argument("--now", action="store_true", help="SIGKILL instead of an orderly stop")
    sub.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    add(admin).add_argument("arguments", nargs=argparse.REMAINDER)
    return root


def _start_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--version", default=release.wanted(), choices=release.RELEASES, help="of RocketMQ (default %(default)s)"
    )
    sub.add_argument("--dir", help="directory of all state (default: a new temporary one); a stopped one starts again")
    sub.add_argument("--brokers", type=int, default=1, help="number of masters")
    sub.add_argument("--slaves", action="store_true", help="a slave for each master")
    sub.add_argument("--controller", action="store_true", help="two brokers of each name, and a controller")
    sub.add_argument("--name-servers", type=int, default=1, help="number of name servers")
    sub.add_argument("--acl", action="store_true", help="access control with one super user")
    sub.add_argument("--tls", action="store_true", help="accept TLS too, self-signed")
    sub.add_argument("--heap", default="512m", help="heap of each broker (default 512m)")
    sub.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="a broker setting")
    sub.add_argument("--namesrv-port", type=int, default=0)
    sub.add_argument("--broker-port", type=int, default=0, help="of the first master; the next ones are 10 apart")


def main() -> int:
    """Run one command. Return 1, with a line on stderr, if it failed."""
    options = parser().parse_args()
    try:
        options.call(options)
    except (ClusterError, RocketMqUnavailable) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
