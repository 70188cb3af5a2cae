"""`rmqd top` and the status page show the values of /api/v1/status: with two workers, and a group on Spark."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from rmqd.consumer.stats.stats_snapshot import QUEUE_STATES
from rmqd.daemon.http.status_view import call_time, rate
from tests.cli.command import rmqd
from tests.daemon.daemon_process import daemon
from tests.nightly.demo.terminal import on_terminal
from tests.nightly.spark.two_engines import write_config
from tests.spark.embedded_broker import EmbeddedBroker
from tests.waiting import eventually

SECONDS: Final = 150.0  # for conditions that wait for a JVM, on a busy machine
QUEUES: Final = 2
COUNTED: Final = ("received", "handled", "acked", "failed", "retried", "expired", "dead_lettered", "corrupt")
HANDLER: Final = """
import time
from pathlib import Path
from rmqd import DeadLetter

def judge(batch, options):
    for message in batch:
        if message.body == b"dead":
            raise DeadLetter("as the test wants it")
        while message.body == b"slow" and not Path(options["go"]).exists():
            time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """The outputs of all three, while the status did not change."""

    status: dict[str, Any]
    page: str
    top: list[list[str]]
    queues: dict[str, str]
    """The screens of `rmqd top` with the queues of a group, by the group's name."""


def standing(document: dict[str, Any]) -> list[Any]:
    """Return the values that must not change while the others are read: all but ages, which grow."""
    return [
        (
            group["name"], group["state"], group["lag"], group["totals"], group["member_count"],
            group["dead_letters"]["total"], group["recent_latency"]["p50"], group["recent_latency"]["p99"],
            [group["rates"][name] for name in ("received", "handled", "retried")],
            [[queue[key] for key in ("queue", "worker", "state", "committed", "max", "lag", "cached")]
             for queue in group["queues"]],
        )
        for group in document["groups"]
    ]  # fmt: skip


async def moment(client: httpx.AsyncClient, address: str) -> Moment:
    """Read all three until nothing has changed meanwhile."""
    found: list[Moment] = []

    async def is_still() -> bool:
        before = (await client.get("/api/v1/status")).json()
        page = (await client.get("/?open=archive&open=mailer")).text
        once = await asyncio.to_thread(rmqd, "top", "--once", "--http", address)
        pictures = await asyncio.to_thread(queue_pictures, address)
        after = (await client.get("/api/v1/status")).json()
        top = [re.split(r"\s{2,}", line) for line in once.out.splitlines()]
        found.append(Moment(after, page, top, pictures))
        return standing(before) == standing(after)

    await eventually(is_still, "the status stands still", SECONDS)
    return found[-1]


def queue_pictures(address: str) -> dict[str, str]:
    """Return the live view of each group's queues."""
    command = [sys.executable, "-m", "rmqd", "top", "--http", address, "--interval", "0.2"]
    pictures = {}
    with on_terminal(command, columns=140, lines=40) as terminal:
        terminal.wait_for("Enter queues")
        for name in ("archive", "mailer"):
            terminal.written = ""
            terminal.press("\r")
            terminal.wait_for(r"(?s)Esc back  p pause queue.*Esc back  p pause queue")
            pictures[name] = terminal.text
            terminal.press("\x7f")
            terminal.wait_for("Enter queues")
            terminal.press("j")
        terminal.press("q")
        terminal.wait()
    return pictures


def text_of(html: str) -> str:
    """Return the text without tags, and with single spaces."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def page_rows(article: str) -> Iterator[list[str]]:
    """The cells of the queues' rows of a group on the page."""
    section = article.split('data-key="queues"')[1].split("</section>")[0]
    for row in re.findall(r"<tr data-key=.*?</tr>", section, re.DOTALL):
        yield [text_of(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
async def test_top_and_the_page_show_the_values_of_the_status(
    tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has handled some messages, has dead-lettered one, and hangs at the last ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judging.py").write_text(HANDLER)
    config = tmp_path / "rmqd.yaml"
    judging = f'{{plugin: "judging:judge", options: {{go: {tmp_path}/go}}}}'
    write_config(config, broker.nameserver, {"archive": judging, "mailer": judging})
    broker.create_topic("orders", QUEUES)
    broker.fill("orders", QUEUES, 10)
    broker.send("orders", "dead")
    async with daemon(config, "--workers", "2") as process:
        client = await process.started()

        async def totals(name: str) -> list[Any]:
            document = (await client.get("/api/v1/status")).json()
            return [group["totals"][name] for group in document["groups"]]

        async def all_handled() -> bool:
            return await totals("acked") == [10 * QUEUES] * 2 and await totals("dead_lettered") == [1, 1]

        try:
            await eventually(all_handled, "both groups handle all", SECONDS)
            for queue in range(QUEUES):
                broker.send("orders", "slow", queue_id=queue)

            async def are_held() -> bool:
                groups = (await client.get("/api/v1/status")).json()["groups"]
                return all(group["lag"] == QUEUES for group in groups)

            await eventually(are_held, "both groups are held", SECONDS)
            seen = await moment(client, client.base_url.netloc.decode())
        except AssertionError as error:
            error.add_note("".join(process.text)[-6000:])
            raise
        finally:
            (tmp_path / "go").touch()
    assert len(seen.status["workers"]) == 2
    for group in seen.status["groups"]:
        same_in_top(group, seen)
        same_on_the_page(group, seen.page.split(f'id="group-{group["name"]}"')[1].split("</article>")[0])


def same_in_top(group: dict[str, Any], seen: Moment) -> None:
    """Compare the group's row, and the rows of its queues."""
    titles, *rows = seen.top
    [row] = [dict(zip(titles, row, strict=True)) for row in rows if row[0] == group["name"]]
    rates, latency = group["rates"], group["recent_latency"]
    assert row["STATE"] == group["state"]
    assert (row["LAG"], row["DEAD"]) == (str(group["lag"]), str(group["dead_letters"]["total"]))
    assert (row["QUEUES"], row["MEMBERS"]) == (str(len(group["queues"])), str(group["member_count"]))
    assert (row["IN/S"], row["OUT/S"]) == (rate(rates["received"]), rate(rates["handled"]))
    assert row["RETRY"] == rate(rates["retried"])
    assert (row["P50"], row["P99"]) == (call_time(latency["p50"]), call_time(latency["p99"]))
    for queue in group["queues"]:
        cells = [
            queue["broker"],
            queue["queue"],
            queue["state"].replace("_", " "),
            *map(queue.get, ("committed", "max")),
        ]
        shown = r"\s+".join("-" if cell is None else re.escape(str(cell)) for cell in [*cells, queue["lag"]])
        worker = "-" if queue["worker"] is None else queue["worker"]
        picture = seen.queues[group["name"]]
        assert re.search(rf"{shown}\s+\S+\s+{queue['cached']}\s+{worker}\s", picture), (queue, picture[-4000:])


def same_on_the_page(group: dict[str, Any], article: str) -> None:
    """Compare the group's metrics, its totals, and the rows of its queues."""
    figures = dict(re.findall(r'<div class="figure[^>]*><dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>', article))
    assert (figures["Lag"], figures["Dead"]) == (str(group["lag"]), str(group["totals"]["dead_lettered"]))
    assert figures["Failed"] == str(group["totals"]["failed"])
    assert figures["p99"] == call_time(group["recent_latency"]["p99"])
    assert figures["In/s"] == rate(group["rates"]["received"])
    assert figures["Out/s"] == rate(group["rates"]["handled"])
    totals = dict(re.findall(r'<div data-key="(\w+)"><dt>[^<]*</dt><dd>([^<]*)</dd>', article))
    assert {name: totals[name] for name in COUNTED} == {name: str(group["totals"][name]) for name in COUNTED}
    shown = [
        (row[0], row[1], row[9], next(word for word in row[2].split() if word in QUEUE_STATES), *row[4:5], *row[6:9])
        for row in page_rows(article)
    ]
    keys = ("broker", "queue", "worker", "state", "lag", "committed", "max", "cached")
    said = [tuple("–" if queue[key] is None else str(queue[key]) for key in keys) for queue in group["queues"]]  # noqa: RUF001
    assert sorted(shown) == sorted(said)
