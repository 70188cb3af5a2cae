"""No output shows a secret: log, status, page, metrics and API, even if a handler's errors quote the secret."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from tests.broker.peer import connected
from tests.daemon.daemon_here import daemon_here
from tests.daemon.leaking_handler import PLUGIN, WAYS
from tests.daemon.test_clusters_at_work import write
from tests.waiting import eventually

ALPHABET = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789-_.+!~"
PAGES = ("/", "/metrics", "/readyz", "/api/v1/status", "/api/v1/config", "/api/v1/history")

# Each takes a secret, and returns options of a handler.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "a type": lambda secret: {"marked": secret},
    "a URL of a type": lambda secret: {"marked": f"amqps://shop:{secret}@mq.example.org:5671/orders"},
    "a name": lambda secret: {"password": secret},
    "a longer name": lambda secret: {"smtp-api_key-2": secret},
    "a nested name": lambda secret: {"server": {"auth": {"user": "ada", "value": secret}}},
    "a list under a name": lambda secret: {"tokens": ["other", secret]},
    "a user's password": lambda secret: {"url": f"postgresql+psycopg://shop:{secret}@db.example.org/orders"},
    "a user": lambda secret: {"url": f"https://{secret}@api.example.org"},
    "a path": lambda secret: {"hook": f"https://hooks.example.org/services/T0/{secret}"},
    "a query": lambda secret: {"hook": f"https://hooks.example.org/send?key={secret}&to=ops"},
    "a list of URLs": lambda secret: {"servers": [f"redis://:{secret}@cache-1:6379", "redis://cache-2:6379"]},
    "a text": lambda secret: {"dsn_text": f"host=db.example.org password={secret} sslmode=require"},
    "an argument": lambda secret: {"command": ["mail", "--password", secret, "--to", "ada"]},
    "a joined argument": lambda secret: {"command": ["mail", f"--token={secret}", "--to", "ada"]},
    "a header": lambda secret: {"headers": {"X-Shop-Token": secret, "Accept": "text/plain"}},
    "a bearer": lambda secret: {"header": f"Authorization: Bearer {secret}"},
    "a variable": lambda secret: {"setting": "${" + f"NONE:-{secret}" + "}"},
    "a URL in a variable": lambda secret: {"to": "${" + f"NONE:-mongodb://shop:{secret}@db/orders" + "}"},
    "a file": lambda secret: {"private_key": f"-----BEGIN KEY-----\n{secret}\n{secret[::-1]}\n-----END KEY-----\n"},
}


@dataclass(frozen=True)
class Placement:
    """A secret at one place of a group's options, quoted in one way."""

    secret: str
    place: str
    way: str

    def options(self) -> dict[str, Any]:
        """The options of the group's handler."""
        return {"way": self.way, **PLACES[self.place](self.secret)}


def placements(seed: int, count: int) -> list[Placement]:
    """`count` placements that cycle through all places."""
    rng = random.Random(seed)
    names = [*PLACES]
    found = []
    for number in range(count):
        text = "".join(rng.choices(ALPHABET, k=rng.randint(8, 40)))
        secret = f"q{text}{rng.randint(10, 99)}"  # looks like a key, also in a variable
        found.append(Placement(secret.replace(".", "7"), names[(seed + number) % len(names)], rng.choice(WAYS)))
    return found


async def leaks(folder: Path, placed: list[Placement]) -> list[str]:
    """Run a daemon with a group for each placement, and return each output that shows a secret."""
    handlers = {f"g{number}": {"plugin": PLUGIN, "options": one.options()} for number, one in enumerate(placed)}
    keys = {"subscriptions": {"orders": "*"}, "consume_from_where": "first_offset"}
    async with embedded_rocketmq(EmbeddedOptions(topics={"orders": 1})) as mq:
        async with connected(mq.broker.address) as peer:
            assert (await peer.send("orders", KEYS="k")).code == 0
        config = write(
            folder,
            nameserver=mq.nameserver,
            client={"access_key": "AKEYAKEY", "secret_key": "the-secret-of-rmqd"},
            groups={name: {**keys, "handler": handler} for name, handler in handlers.items()},
        )
        async with daemon_here(config) as running:
            client = await running.started()

            async def have_all_failed() -> bool:
                groups = (await client.get("/api/v1/status")).json()["groups"]
                return all(one["last_error"] or one["failure"] for one in groups)

            await eventually(have_all_failed, "every handler failed")
            outputs = {path: (await client.get(path)).text for path in PAGES}
            running.send(signal.SIGTERM)
            await running.exit_code()
            outputs["log"] = "".join(running.text)
    assert "RuntimeError" in outputs["log"]
    secrets = {"a key of rmqd": "the-secret-of-rmqd"} | {f"{one.place}, {one.way}": one.secret for one in placed}
    return [
        f"{where} shows {name}: {text[max(0, text.index(secret) - 200) : text.index(secret) + 60]!r}"
        for where, text in outputs.items()
        for name, secret in secrets.items()
        if secret in text
    ]


async def test_no_output_shows_a_secret(tmp_path: Path) -> None:
    """Uses each place of a secret twice."""
    assert await leaks(tmp_path, placements(0, 2 * len(PLACES))) == []
