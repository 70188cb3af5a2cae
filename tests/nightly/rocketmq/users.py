"""Users and permissions of a cluster with access control (ACL 2.0), created at every broker without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.rocketmq import rpc
from tests.rocketmq.cluster import RealCluster

CREATE_USER, UPDATE_USER, CREATE_ACL = 3001, 3002, 3006


def create_user(cluster: RealCluster, name: str, secret: str) -> None:
    """Create a user without permissions."""
    user = {"username": name, "password": secret, "userType": "Normal"}
    _ask(cluster, CREATE_USER, {"username": name}, user)


def update_user(cluster: RealCluster, name: str, **changes: str) -> None:
    """Change a user: `password`, `userStatus` (enable, disable)."""
    _ask(cluster, UPDATE_USER, {"username": name}, {"username": name, **changes})


def allow(cluster: RealCluster, name: str, resources: Sequence[str], *actions: str) -> None:
    """Allow a user these actions with resources such as `Topic:orders` and `Group:mailer`."""
    entries = [{"resource": one, "actions": list(actions), "decision": "Allow", "sourceIps": []} for one in resources]
    policies = [{"policyType": "Custom", "entries": entries}]
    subject = f"User:{name}"
    _ask(cluster, CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": policies})


def _ask(cluster: RealCluster, code: int, fields: dict[str, object], body: Mapping[str, object]) -> None:
    for node in cluster.masters:
        rpc.call(node.address, code, fields, body=json.dumps(body).encode(), credentials=cluster.credentials)
