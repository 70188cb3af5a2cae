"""Assigns queues to this member, and decides when it may start with a queue that another member owned.

`rebalance` divides the queues as every member does; ownership governs the moment of the hand-over. There are two kinds.
In a group that is not orderly the next owner waits for the previous one, for a limited time. In an orderly group it
waits for the queue's lock, without a limit. docs/proof/ownership.md describes the brokers' part and the rules.
"""
