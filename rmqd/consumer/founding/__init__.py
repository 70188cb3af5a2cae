"""The start offsets of a new group, and of queues added later. Stored offsets decide which of the two applies.

`consumer.offsets` has the parts that depend on the offset store (`founding_by_brokers`, `founding_by_file`).

    founding      Founding: stores a new group's start offsets once; the start offset of a queue without one
    start_offset  StartPolicy: the meaning of `consume_from_where` for a queue; Start: the offset, and why
    order         the order of storing a new group's offsets, which shows whether an earlier attempt was interrupted
"""
