"""What concerns more than one key: keys that need or exclude each other, names that RocketMQ refuses.

Rules are generators of findings, which name a path and not a line; `config.load` finds the line.

    groups       groups, and what is outside of them; what keeps a group from being run
    clusters     whether each cluster can be found, and which one a group is on
    spark        groups with `engine: spark`
    sinks        a pipeline's sink, by its format
    deduplicate  which groups can deduplicate, and what the stores need
    urls         URLs of databases, for the two before
"""
