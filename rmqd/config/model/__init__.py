"""The keys of the configuration, as pydantic models. The only place that knows defaults and ranges.

A field is `Annotated[type, kind]` with `setting(default, description)`: the kind checks and describes the value.
Pydantic's own checks are not used, since they take "5" for 5 and word errors about types that nobody wrote.

    root        RootConfig: the whole file; http, log, tracing; which cluster a group is on
    cluster     a cluster: name servers, the client's settings, TLS
    group       GroupConfig: one group, with RocketMQ's parameters
    failures    `retry` and `dead_letter` of a group
    deduplicate  `deduplicate` of a group
    spark       `spark`, `pipeline` and `sink` of a group with `engine: spark`
    section     what every mapping has in common
    kinds       kinds of value: whole numbers, flags, text, choices, durations, sizes
    forms       values with a form of their own: addresses, subscriptions, times, strategies
    quantities  durations and sizes as people write them
    small_file  files that hold a secret or a token
    java_names  names of the Java client, and what is written here instead
    errors      what pydantic found, in words for the user
"""
