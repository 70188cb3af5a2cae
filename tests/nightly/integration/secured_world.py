"""A topic, a group and a user of the secured cluster, for tests of permissions and secrets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.certificates import CA, CLIENT, certificate, key
from tests.nightly.rocketmq.users import allow, create_user
from tests.rocketmq import RealCluster, ledger, release, settings
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer

SECRET, NEXT_SECRET, WRONG_SECRET = "s3cret-of-a-test", "another-s3cret", "not-the-s3cret"


class World:
    """A topic, a group, and a user with the permissions that docs/security.md lists for a group."""

    def __init__(self, cluster: RealCluster, test: str, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.user, self.secret = fresh_name(test, "user"), SECRET
        self.topic = cluster.create_topic(fresh_name(test, "topic"), 4)
        self.group = fresh_name(test, "group")
        self.ledger = directory / "ledger"
        if release.is_4():  # its users are in a file, and it lacks these requests
            self.user, self.secret = settings.ACCESS_KEY, settings.SECRET_KEY
            return
        create_user(cluster, self.user, SECRET)
        names = [f"Topic:{self.topic}", f"Group:{self.group}", f"Group:{self.group}-rmqd-owner"]
        allow(cluster, self.user, names, "Sub", "Get")
        allow(cluster, self.user, [f"Topic:%DLQ%{self.group}"], "Pub")

    def client(self, *, secret: str = "", tls: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The `client` section of the configuration; the secret is in a file."""
        (self.directory / "secret").write_text(f"{secret or self.secret}\n")
        keys = {"access_key": self.user, "secret_key": f"${{file:{self.directory}/secret}}"}
        shown = {"cert_file": str(certificate(CLIENT)), "key_file": str(key(CLIENT))}
        return {**keys, "tls": {"enabled": True, "ca_file": str(CA), **shown} if tls is None else tls, **more}

    def send(self, first: int, end: int) -> None:
        """Send messages with the keys m`first` up to m`end` - 1."""
        with Producer(self.cluster.broker.address, self.topic, 4, credentials=self.cluster.credentials) as producer:
            for number in range(first, end):
                producer.send(key=f"m{number}")

    def finished(self, *ledgers: Path) -> Counter[str]:
        """How often each key was handled to the end."""
        entries = ledger.read(*(ledgers or (self.ledger,)))
        return Counter(entry.key for entry in entries if entry.event == ledger.FINISH)


def secrets_in(texts: list[str], world: World) -> list[str]:
    """The secrets that occur in rmqd's output."""
    secrets = (world.secret, NEXT_SECRET, world.user, WRONG_SECRET)
    return [secret for secret in secrets if any(secret in text for text in texts)]
