"""`rmqd message trace`: the groups that handled a message, and their attempts."""

from __future__ import annotations

from rmqd import Batch, DeadLetter
from tests.cli.cluster import Cluster


def test_a_message_is_followed_through_its_groups() -> None:
    """One group has handled it, one has dead-lettered it after a retry, and one has not reached it."""
    with Cluster() as cluster:
        cluster.create_topic("followed", 1)
        cluster.send("followed", "other", keys="other")
        cluster.send("followed", "body", keys="order-1")
        attempts: list[int] = []

        def bad(batch: Batch) -> None:
            if batch[0].keys == "order-1":
                attempts.append(batch[0].reconsume_times)
                raise DeadLetter("no such customer") if batch[0].reconsume_times else ValueError("no database")

        def good(_: Batch) -> None:
            pass

        cluster.run_handler(good, topic="followed", group="good", enable_trace=True)
        cluster.run_handler(bad, topic="followed", group="bad", enable_trace=True)
        assert attempts == [0, 1]
        cluster.commit("late", "followed", 1)
        (report,) = cluster.json("message", "trace", "--topic", "followed", "--key", "order-1")
        groups = {one["group"]: one for one in report["groups"]}
        assert {name: (one["state"], one["attempts"]) for name, one in groups.items()} == {
            "good": ("passed", 1),
            "bad": ("dead_lettered", 2),
            "late": ("waiting", 0),
        }
        assert (groups["late"]["committed"], groups["late"]["offset"]) == (1, 1)
        assert (groups["bad"]["topic"], groups["bad"]["reason"]) == ("%DLQ%bad", "no such customer")
        assert {one["topic"] for one in report["copies"]} == {"followed", "%RETRY%bad", "%DLQ%bad"}
        handled = [(one["group"], one["result"]) for one in report["events"] if one["kind"] == "handled"]
        assert sorted(handled) == [("bad", "exception"), ("bad", "failed"), ("good", "success")]
        assert [one["attempt"] for one in report["events"] if one["group"] == "bad"] == [1, 2]
        assert {one["client"].partition(":")[0] for one in report["events"]} == {"127.0.0.1"}

        by_id = cluster.ask("message", "trace", report["msg_id"])
        assert by_id.out.startswith(f"message {report['msg_id']}\n")
        assert "no such customer" in by_id.out
        by_offset_id = cluster.json("message", "trace", report["copies"][0]["offset_msg_id"])
        assert len(by_offset_id[0]["copies"]) == 3
        assert cluster.ask("message", "trace", "--topic", "followed", "--key", "nothing").code == 1
        assert cluster.ask("message", "trace").code == 2
