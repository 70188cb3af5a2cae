"""The releases of RocketMQ that tests can run, with their JVM options, and rmqd's own embedded broker."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.rocketmq.errors import RocketMqUnavailable

ENVIRONMENT = "RMQD_TEST_ROCKETMQ"


@dataclass(frozen=True, slots=True)
class Release:
    """`modules` are the modules whose jars are required; `jvm_options` open packages that Java 17 keeps closed."""

    version: str
    modules: tuple[str, ...]
    jvm_options: tuple[str, ...] = ()
    logback_files: tuple[str, ...] = ()
    """What the programs look for below `conf` of their home, and end without; later releases take a property."""
    stands_for: str = ""
    """The release whose behaviour this is to have, and whose Java programs (mqadmin, the clients) go with it."""

    @property
    def java(self) -> str:
        """The release whose jars are used."""
        return self.stands_for or self.version


_SERVERS = ("broker", "namesrv", "tools", "client")
DEFAULT = "5.5.0"
EMBEDDED = "embedded"  # `rmqd broker`
_daily = False
RELEASES = {
    release.version: release
    for release in (
        Release(DEFAULT, (*_SERVERS, "proxy")),
        Release(
            "4.9.7",
            _SERVERS,
            jvm_options=(
                "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
                "--add-opens=java.base/java.nio=ALL-UNNAMED",
                "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
                "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
            ),
            logback_files=("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"),
        ),
        Release(EMBEDDED, (), stands_for=DEFAULT),
    )
}


def named(version: str) -> Release:
    """Return a release by its version. Raises RocketMqUnavailable if it is unknown."""
    try:
        return RELEASES[version]
    except KeyError:
        known = ", ".join(sorted(RELEASES))
        raise RocketMqUnavailable(f"no RocketMQ {version} is known here; accepted: {known}") from None


def asked_for() -> str:
    """The value of RMQD_TEST_ROCKETMQ; empty if it is not set."""
    return os.environ.get(ENVIRONMENT, "")


def wanted() -> str:
    """The version of clusters that name none: `asked_for`, else the embedded one in daily runs, else 5.5.0."""
    return asked_for() or (EMBEDDED if _daily else DEFAULT)


def be_daily(daily: bool = True) -> None:
    """From now on, clusters are embedded unless another version is requested, and tests use no Java programs."""
    global _daily
    _daily = daily


def is_without_java() -> bool:
    """Whether tests use no Java programs. Tests in tests/smoke always use them."""
    return _daily and not asked_for()


def is_4() -> bool:
    """Whether the wanted version is a 4.x release, which lacks some requests and responds differently to others."""
    return wanted().startswith("4.")
