"""The stores of a group's offsets, and the time of commits.

A clustering group's offsets are on the brokers, where other members and operators change them too. A broadcasting
group's offsets are in a local file that only this process writes. Both are an OffsetStore (`consumer.services`). One
commit of a queue runs at a time, and only an operator lowers an offset: docs/proof/ownership.md.
"""
