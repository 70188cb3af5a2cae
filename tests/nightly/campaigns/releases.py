"""New code for running groups under load: restarts and canaries, with a ledger of what each version handled."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.integration.load import Load
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq import RealCluster, ledger, offsets
from tests.waiting import wait_until

QUEUES = 8
TAIL_BYTES = 1 << 14
MODULE = """
from tests.integration.ledger_handler import LedgerHandler


class Released(LedgerHandler):
    def __init__(self, options: LedgerHandler.Options) -> None:
        super().__init__(options.model_copy(update={{"member": {version!r}}}))
"""


@dataclass(frozen=True, slots=True)
class Releases:
    """A daemon with a concurrent, an orderly and an untouched group of one topic, and the load on it.

    The first two have a canary without a share. The canary of the untouched group is a shadow, with its own ledger.
    """

    cluster: RealCluster
    folder: Path
    topic: str
    per_second: float

    @property
    def groups(self) -> tuple[str, str]:
        """The groups that get new code."""
        return f"{self.topic}-concurrent", f"{self.topic}-orderly"

    @property
    def untouched(self) -> str:
        """The group that keeps its code."""
        return f"{self.topic}-untouched"

    def path(self, group: str) -> Path:
        """The ledger of a group."""
        return self.folder / f"{group}.ledger"

    def write(self, group: str, version: str, kind: str = "code") -> None:
        """Release a version of a group's code, or of the code of its canary."""
        name = self._module(group, kind)
        # of different sizes, because Python compares a module with its bytecode by size and second
        (self.folder / f"{name}.py").write_text(MODULE.format(version=version) + "#" * len(version))

    def wait_for(self, group: str, version: str) -> None:
        """Wait until a version has handled a message of the group."""
        path = self.path(group)

        def is_handling() -> bool:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                return f"\t{version}\t".encode() in file.read()

        wait_until(is_handling, f"{version} handles {group}", 60)

    def run(self, rounds: Callable[[RmqdProcess], None]) -> None:
        """Call `rounds` while messages are sent, wait until each group has handled all of them, and check that."""
        self.cluster.create_topic(self.topic, QUEUES)
        for group in (*self.groups, self.untouched):
            self.write(group, "1")
            self.write(group, "canary", "canary")
        groups = {group: self._settings(group) for group in (*self.groups, self.untouched)}
        rmqd = RmqdProcess(self.folder / "rmqd", self.cluster.nameserver, groups)
        rmqd.import_from.append(self.folder)
        with rmqd:
            rmqd.wait_ready()
            with Load(self.cluster, self.topic, 10**6, per_second=self.per_second, queues=QUEUES) as load:
                rounds(rmqd)
            for group in groups:
                tail = ledger.Tail()
                wait_until(
                    lambda tail=tail, group=group: tail.finished([self.path(group)]) >= load.sent.keys(),  # type: ignore[misc]
                    f"{group} has handled everything\n{rmqd.tail()}",
                    120,
                )
            assert rmqd.terminate()[0] == 0, rmqd.tail()
            for group in groups:
                assert offsets.lag(self.cluster, group, self.topic) == 0
                self._check(group, load.sent)

    def versions(self, group: str) -> list[str]:
        """The versions that handled the group's messages, by their first message."""
        return list(dict.fromkeys(entry.member for entry in ledger.read(self.path(group))))

    def _check(self, group: str, sent: Collection[str]) -> None:
        """Check that the group handled each message once, and in order if it is orderly."""
        entries = ledger.read(self.path(group))
        begun = [entry.key for entry in entries if entry.event == ledger.START]
        assert sorted(begun) == sorted(sent), "nothing is lost, and nothing is handled twice"
        if group.endswith("-orderly"):
            for queue in range(QUEUES):
                steps = [(entry.offset, entry.event) for entry in entries if entry.queue == queue]
                assert all(one <= other for one, other in pairwise(offset for offset, _ in steps)), "order is kept"
                assert [event for _, event in steps] == [ledger.START, ledger.FINISH] * (len(steps) // 2)

    def _module(self, group: str, kind: str = "code") -> str:
        return f"{group.rpartition('-')[2]}_{kind}"

    def _settings(self, group: str) -> dict[str, Any]:
        options = {"path": str(self.path(group)), "member": "", "seconds": 0.005}
        return {
            "subscriptions": {self.topic: "*"},
            "consume_from_where": "first_offset",
            "consume_mode": "orderly" if group.endswith("-orderly") else "concurrently",
            "consume_message_batch_max_size": 4,
            "handler": {
                "plugin": f"{self._module(group)}:Released",
                "options": options,
                "canary": {
                    "plugin": f"{self._module(group, 'canary')}:Released",
                    "options": options if group != self.untouched else {**options, "path": str(self.path("shadow"))},
                    "share": "50%" if group == self.untouched else "0%",
                    "mode": "shadow" if group == self.untouched else "live",
                },
            },
        }
