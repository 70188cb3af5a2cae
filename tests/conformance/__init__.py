"""The conformance suite: each behaviour of RocketMQ's push consumer, checked on a real broker.

The results are in docs/proof/conformance.md.

The same tests run against the embedded broker, to show that it can replace the real one. The tests outside
`tests/nightly` do so every day, without Java: next to a comparison with Java, a test also states its expectation. The
tests of `tests/smoke` use a real broker every day, with Java.

A test in any directory declares the behaviour that it proves:

    @behaviour(
        "retries",
        "A failed message is redelivered with increasing delays",
        java="sent back with level 3 + reconsume times: 10 s, 30 s, 1 m, …",
        rmqd="the same",
        checked="a Java consumer and rmqd run one script; their attempts are compared",
    )
    async def test_retry_levels(rocketmq: RealCluster, ...) -> None: ...

- The area is one of `AREAS`; the behaviour is one sentence, used once. Several tests of one behaviour share the value:
  `LEVELS = behaviour(...)` at the top of the module, `@LEVELS` on each. Several declarations on one test are fine.
- `java` and `rmqd` describe the behaviour of each in a clause. `checked` names the counterpart: a Java consumer,
  mqadmin, or the broker's state. If Java has no counterpart, `java` says so.
- `differs="…"` describes the difference on 4.9.7. The test reads `rocketmq.spec.version` if its expectation differs.
- `embedded="…"` describes the difference on rmqd's embedded broker, with the reason.
- `since="5.0"`: older brokers do not have this behaviour. The test is skipped there, and the page says so.
- `long=True`: a test of more than 20 seconds, in `tests/nightly`. Only `make conformance` runs it.

The cluster comes from the fixture `rocketmq` (or another of `tests/rocketmq/fixtures.py`), whose version
`RMQD_TEST_ROCKETMQ` names. `make conformance` runs every declared test and writes the page; `make conformance
VERSION=4.9.7` fills the column of differences, `make conformance VERSION=embedded` the column of `rmqd broker`. If only
declarations changed: `.venv/bin/python -m tests.nightly.conformance.page`.
"""

from tests.conformance.declaration import AREAS, Behaviour, behaviour

__all__ = ["AREAS", "Behaviour", "behaviour"]
