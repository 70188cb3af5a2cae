"""Rules about several keys: keys that require or exclude each other, names that RocketMQ refuses.

Rules are generators of findings with a path; `config.load` adds the line.

    groups       groups, and everything outside them; conditions for running a group
    clusters     whether each cluster has name servers, and each group an existing cluster
    spark        groups with `engine: spark`
    sinks        a pipeline's sink, by its format
    deduplicate  whether a group can deduplicate, and the requirements of its store
    urls         database URLs, for sinks and deduplicate
"""
