"""Apache RocketMQ's own integration tests, against `rmqd broker` and against a real RocketMQ 5.5.0.

They are the module `test` of RocketMQ's release, whose classes Maven fetches compiled. Their base class, BaseConf,
starts a name server and brokers inside its JVM; the one in `java` stands before it on the class path and names the
cluster that runs beside it. `make peer-tests` runs them and writes the table in docs/proof/rocketmq-tests.md.
"""
