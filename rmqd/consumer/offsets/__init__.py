"""The stores of a group's offsets, the periodic commits, and the start offsets of queues without a stored offset.

A clustering group's offsets are on the brokers, where other members and operators change them too. A broadcasting
group's offsets are in a local file that only this process writes. All stores are subclasses of `GroupOffsetStore`.
Commits of one queue run one after the other. Only a reset or a correction lowers an offset: docs/proof/ownership.md.
"""
