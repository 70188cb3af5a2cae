"""Command lines of RocketMQ's Java programs, and the class data archives that cut a third off each start."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from tests import certificates
from tests.rocketmq import release
from tests.rocketmq.fetch import find_java, home, jars

MAIN_CLASSES = {
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
    "proxy": "org.apache.rocketmq.proxy.ProxyStartup",
}


def archive(kind: str, version: str) -> Path:
    """The path of the class data archive of this program, for this JVM and this release's jars."""
    seed = told_apart(Path(find_java()).resolve()) + f"{home(version)}{version}False".encode()
    return home(version) / "cds" / f"{kind}-{hashlib.sha256(seed).hexdigest()[:12]}.jsa"


def sharing(kind: str, version: str) -> list[str]:
    """The options that start a JVM with the archive; empty if it was not recorded."""
    path = archive(kind, version)
    return options_with(path) if path.exists() else []


def options_with(path: Path) -> list[str]:
    """The options that start a JVM with an archive, without a warning if the JVM cannot use it."""
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"]


def told_apart(java: Path) -> bytes:
    """Bytes that identify a Java, even if another one is later at the same path. An archive fits only one Java."""
    about = java.parent.parent / "release"
    return str(java).encode() + (about.read_bytes() if about.exists() else b"")


def tls_options(permissive: bool = False, certified: bool = False) -> list[str]:
    """The TLS options of a program's servers and clients: no TLS, TLS accepted too, or only TLS (`certified`)."""
    if not certified:
        # a server that accepts TLS without certificates creates an RSA key: 0.7 s, twice in a broker
        return ["-Dtls.server.mode=permissive" if permissive else "-Dtls.server.mode=disabled"]
    server, client = certificates.SERVER, certificates.CLIENT
    return [
        "-Dtls.server.mode=enforcing",
        "-Dtls.test.mode.enable=false",
        "-Dtls.server.authClient=true",
        "-Dtls.server.need.client.auth=require",
        f"-Dtls.server.certPath={certificates.certificate(server)}",
        f"-Dtls.server.keyPath={certificates.key(server)}",
        f"-Dtls.server.trustCertPath={certificates.CA}",
        "-Dtls.enable=true",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.certPath={certificates.certificate(client)}",
        f"-Dtls.client.keyPath={certificates.key(client)}",
        f"-Dtls.client.trustCertPath={certificates.CA}",
    ]


def command(
    kind: str,
    version: str,
    cluster: Path,
    logs: Path,
    heap: str,
    *,
    tls: Sequence[str] = (),
    record: Path | None = None,
    is_measured: bool = False,
) -> list[str]:
    """The command that starts a RocketMQ program, without its own arguments.

    `cluster` is the cluster's directory, `logs` the directory that the program may write to, and `tls` comes from
    `tls_options`. With `record`, the program writes its class data archive there when it ends.
    """
    options = [find_java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xss512k"]
    options += release.named(version).jvm_options
    if not is_measured:
        options.append("-XX:TieredStopAtLevel=1")
    if record is not None:
        options.append(f"-XX:ArchiveClassesAtExit={record}")
    else:
        options += sharing(kind, version)
    level = os.environ.get("RMQD_ROCKETMQ_LOG")  # the remoting layer warns at every slow or closed connection
    return [
        *options,
        *(tls or tls_options()),
        f"-Duser.home={logs}",
        f"-Djava.io.tmpdir={cluster / 'tmp'}",
        f"-Drocketmq.home.dir={cluster}",
        f"-Drmq.logback.configurationFile={cluster / 'logback.xml'}",
        f"-Drmqd.log={logs / 'log'}",
        f"-Drmqd.log.level={level or 'WARN'}",
        f"-Drmqd.log.remoting={level or 'ERROR'}",
        "-Djava.net.preferIPv4Stack=true",
        "-Dfile.encoding=UTF-8",
        "-cp",
        ":".join(jars(version)),
        MAIN_CLASSES[kind],
    ]
