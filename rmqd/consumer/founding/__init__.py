"""Whether a group is new or a queue came to it later, and where it begins. Decided by what is stored.

The stores' own ways to found a group are in `consumer.offsets` (`founding_by_brokers`, `founding_by_file`).

    founding      Founding: found the group once; where to begin in a queue without an offset
    start_offset  StartPolicy: what `consume_from_where` means for a queue; Start: the offset, and why
    order         the order in which offsets of a new group are stored, so that one cut short is recognised
"""
