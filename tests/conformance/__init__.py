"""The conformance suite: each behaviour of RocketMQ's push consumer, checked on a real broker.

The results are in docs/proof/conformance.md.

The same tests run against the embedded broker, which so shows that it can stand in for the real one. Those outside
`tests/nightly` do so every day, and without Java: beside what a test compares with Java, it says what it expects. Those
of `tests/smoke` have a real broker every day, with Java.

A test says what it proves in a declaration beside it, wherever it lies:

    @behaviour(
        "retries",
        "A message that failed comes again later and later",
        java="sent back with level 3 + reconsume times: 10 s, 30 s, 1 m, …",
        rmqd="the same",
        checked="a Java consumer and rmqd run one script; their attempts are compared",
    )
    async def test_retry_levels(rocketmq: RealCluster, ...) -> None: ...

- The area is one of `AREAS`; the behaviour is one sentence, used once. Several tests of one behaviour share the value:
  `LEVELS = behaviour(...)` at the top of the module, `@LEVELS` on each. Several declarations on one test are fine.
- `java` and `rmqd` say what each does, in a clause; `checked` names the counterpart: a Java consumer, mqadmin, or what
  the broker alone knows. Where there is no counterpart in Java, say so in `java`.
- `differs="…"` says what is different on 4.9.7; the test asks `rocketmq.spec.version` where it expects another thing.
- `embedded="…"` says what is different on rmqd's embedded broker, and why.
- `since="5.0"` where an older broker has nothing of the kind: the test is skipped there, and the page says so.
- `long=True` for a test above 20 seconds, in `tests/nightly`: `make conformance` alone runs it.

The cluster comes from the fixture `rocketmq` (or another of `tests/rocketmq/fixtures.py`), whose version
`RMQD_TEST_ROCKETMQ` names. `make conformance` runs every declared test and writes the page; `make conformance
VERSION=4.9.7` fills the column of what differs, `make conformance VERSION=embedded` that of `rmqd broker`. After a
change of declarations alone: `.venv/bin/python -m tests.nightly.conformance.page`.
"""

from tests.conformance.declaration import AREAS, Behaviour, behaviour

__all__ = ["AREAS", "Behaviour", "behaviour"]
