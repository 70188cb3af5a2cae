"""Apache RocketMQ's integration tests, on `rmqd broker` and on a real RocketMQ 5.5.0.

They are the module `test` of RocketMQ's release; Maven fetches the compiled classes. Their base class, BaseConf, starts
a name server and brokers inside its JVM. The BaseConf in `java` comes first on the class path and uses a cluster in
other processes. `make peer-tests` runs them and writes the table in docs/proof/rocketmq-tests.md.
"""
