"""A member as the official Java client would be one."""

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
    """Runs a JavaConsumer, whose queues the judge is told of."""

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
        finally:  # it may have been about to take one
            self._queues.end(self.name)

    def kill(self) -> None:
        """End at once."""
        super().kill()
        self._queues.end(self.name)

    def snapshot(self) -> GroupSnapshot | None:
        """Return None: Java counts nothing that is judged."""
        return None

    def queues(self, topic: str) -> list[tuple[str, int]]:
        """The brokers and numbers of the queues of a topic that it has taken over, and not given up."""
        return self._queues.of(self.name)


def plan_of_java(plan: Plan) -> Plan:
    """The plan by which handlers of Java behave: a batch is done, or it fails."""
    return replace(plan, habits=replace(plan.habits, verdicts=0.0))
