"""The configuration files of a node, as RocketMQ reads them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rocketmq import release
from tests.rocketmq.spec import HOST, ClusterSpec, NodeSpec

CLUSTER_NAME = "DefaultCluster"
ACCESS_KEY, SECRET_KEY = "rmqdadmin", "rmqd-test-secret"  # for temporary clusters on 127.0.0.1

LOGBACK = """\
<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>${rmqd.log}</file>
    <append>true</append>
    <encoder><pattern>%d %p %logger{0} %t - %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqRemoting" level="${rmqd.log.remoting:-ERROR}"/>
  <root level="${rmqd.log.level:-WARN}"><appender-ref ref="FILE"/></root>
</configuration>
"""

BROKER_DEFAULTS = {
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    # small files: sparse if the file system supports it, otherwise cheap to create
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "1200000",
    "maxHashSlotNum": "200000",
    "maxIndexNum": "800000",
    # a filling disk must not stop a test (the broker itself caps these at 95 and 90)
    "diskMaxUsedSpaceRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
    "cleanFileForciblyEnable": "false",
    # a busy test machine must not make the broker shed load
    "waitTimeMillsInSendQueue": "10000",
    "waitTimeMillsInPullQueue": "30000",
    "osPageCacheBusyTimeOutMills": "30000",
    "sendMessageThreadPoolNums": "2",
    # at its start, RocketMQ 5.5 occupies a core for this long
    "transactionMetricFlushInterval": "300",
    # and forever from three seconds after a transaction's end, because writes at this interval stay overdue;
    # with a size of 1, each end is written at once
    "transactionOpBatchInterval": str(24 * 3600 * 1000),
    "transactionOpMsgMaxSize": "1",
    # each flush writes a timer wheel of 38 MB, which takes 0.4 s of a core
    "timerFlushIntervalMs": "300000",
    # off by default
    "recallMessageEnable": "true",
}

CONTROLLED = {
    "enableControllerMode": "true",
    # a message counts as stored once every broker that may become master has it
    "allAckInSyncStateSet": "true",
    "inSyncReplicas": "2",
}


def write_files(cluster: Path, spec: ClusterSpec) -> None:
    """Write every node's configuration below the cluster's directory."""
    for name in ("conf", "tmp", "admin"):
        (cluster / name).mkdir(parents=True, exist_ok=True)
    (cluster / "logback.xml").write_text(LOGBACK)
    for name in release.named(spec.version).logback_files:
        (cluster / "conf" / name).write_text(LOGBACK)
    if spec.acl:  # where mqadmin looks for its credentials
        (cluster / "conf" / "tools.yml").write_text(f"accessKey: {ACCESS_KEY}\nsecretKey: {SECRET_KEY}\n")
        # RocketMQ 4 has its users in a file, which it reads again when it changes
        account = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY, "admin": True}
        (cluster / "conf" / "plain_acl.yml").write_text(json.dumps({"accounts": [account]}))
    for node in spec.nodes:
        home = cluster / (node.process or node.name)
        home.mkdir(exist_ok=True)
        if node.process:  # the embedded RocketMQ is configured by its command line
            continue
        if node.kind == "proxy":
            (home / "conf").write_text(json.dumps(_proxy(node, spec), indent=1))
            continue
        lines = _namesrv(home, node, spec) if node.kind == "namesrv" else _broker(home, node, spec)
        (home / "conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


def _namesrv(home: Path, node: NodeSpec, spec: ClusterSpec) -> dict[str, object]:
    lines: dict[str, object] = {
        "listenPort": node.port,
        "bindAddress": HOST,
        "kvConfigPath": home / "kvConfig.json",
        "configStorePath": home / "namesrv.properties",
    }
    if spec.controller and node is spec.nodes[0]:
        lines |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{spec.controller_address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": home / "controller",
        }
    return lines


def _broker(home: Path, node: NodeSpec, spec: ClusterSpec) -> dict[str, object]:
    store = home / "store"
    lines: dict[str, object] = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": node.broker_name,
        "brokerId": node.broker_id,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "bindAddress": HOST,
        "listenPort": node.port,
        "haListenPort": node.port + 1,
        "namesrvAddr": spec.name_server_addresses,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "brokerRole": "SLAVE" if node.broker_id else "ASYNC_MASTER",
        **BROKER_DEFAULTS,
    }
    if spec.controller:
        lines |= CONTROLLED | {"controllerAddr": spec.controller_address}
        del lines["brokerId"]
    if spec.acl and spec.version.startswith("4."):
        lines["aclEnable"] = "true"
    elif spec.acl:
        lines |= _auth(store)
    return lines | {key: value for key, value in spec.settings.items() if not (node.broker_id and key == "brokerRole")}


def _proxy(node: NodeSpec, spec: ClusterSpec) -> dict[str, object]:
    """A proxy reads JSON."""
    return {
        "rocketMQClusterName": CLUSTER_NAME,
        "proxyMode": "CLUSTER",
        "namesrvAddr": spec.name_server_addresses,
        "remotingListenPort": node.port,
        "grpcServerPort": node.port + 1,
        "localServeAddr": HOST,
        "enablePrintJstack": False,
        "grpcShutdownTimeSeconds": 1,
    }


def _auth(store: Path) -> dict[str, object]:
    package = "org.apache.rocketmq.auth"
    return {
        "authConfigPath": store / "auth",
        "authenticationEnabled": "true",
        "authenticationProvider": f"{package}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{package}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": ACCESS_KEY, "password": SECRET_KEY}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{package}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{package}.authorization.provider.LocalAuthorizationMetadataProvider",
    }
