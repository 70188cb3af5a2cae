"""A member that behaves like the official Java client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rmqd.client.instance import ClientInstance
from tests.simulation.members.java_consumer import JavaConsumer
from tests.simulation.members.member import Consumer, Member

if TYPE_CHECKING:
    from rmqd.consumer.consumer_options import ConsumerOptions
    from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
    from rmqd.wire.message_queue import MessageQueue
    from tests.simulation.judging.java import JavaQueues
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.members.handling import Handling
    from tests.simulation.plan import Plan


class JavaMember(Member):
    """Runs a JavaConsumer, and reports its queues to the judge."""

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        nameservers: tuple[str, ...],
        options: ConsumerOptions,
        handling: Handling,
        queues: JavaQueues,
    ) -> None:
        self._queues = queues
        super().__init__(loop, name, nameservers, options, handling)

    def _new_consumer(self, options: ConsumerOptions, handling: Handling, client: ClientInstance) -> Consumer:
        return JavaConsumer(options, handling, client, self._on_owned, self._on_forced)

    def _on_owned(self, queue: MessageQueue, is_owned: bool) -> None:
        self._queues.note(self.name, queue, is_owned=is_owned)

    def _on_forced(self, queue: MessageQueue) -> None:
        self._queues.note_forced(self.name, queue)

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:  # it may have been acquiring a queue
            self._queues.end(self.name)

    def kill(self) -> None:
        """Kill the member."""
        super().kill()
        self._queues.end(self.name)

    def snapshot(self) -> GroupSnapshot | None:
        """Return None: Java has no counters for the judge."""
        return None

    def queues(self, topic: str) -> list[tuple[str, int]]:
        """Return broker and number of each queue of a topic that the member owns."""
        return self._queues.of(self.name)


def plan_of_java(plan: Plan) -> Plan:
    """Return the plan for Java handlers: a batch succeeds or fails as a whole."""
    return replace(plan, habits=replace(plan.habits, verdicts=0.0))
