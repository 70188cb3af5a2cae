"""The local engine: one consumer group in this process, from its rebalance to its commits.

A group is a PushConsumer. `assembly` chooses the group's parts by consume mode and message model and collects them in
one GroupContext. Each part receives the GroupContext and the objects that it owns. No modules import each other, not
even by way of others (tests/test_architecture.py). The engine does not know the configuration file or other groups, and
the only files that it writes are a broadcasting group's offsets. docs/architecture.md follows a message through the
tasks; docs/proof/ownership.md has the rules for commits.
"""
