"""The keys of the configuration, as pydantic models. Only this package knows defaults and ranges.

A field is `Annotated[type, kind]` with `setting(default, description)`: the kind checks and describes the value.
Pydantic's own checks are not used, because they accept "5" for 5, and their errors mention types that users do not
know.

    root        RootConfig: the whole file; http, log, tracing; the cluster of a group
    cluster     a cluster: name servers, the client's settings, TLS
    group       GroupConfig: one group, with RocketMQ's parameters
    failures    `retry` and `dead_letter` of a group
    deduplicate  `deduplicate` of a group
    spark       `spark`, `pipeline` and `sink` of a group with `engine: spark`
    section     the base class of all mappings
    kinds       kinds of value: whole numbers, flags, text, choices, durations, sizes
    forms       values with a syntax: addresses, subscriptions, times, strategies
    quantities  durations and sizes with units
    small_file  files with a secret or a token
    java_names  names of the Java client, and their counterparts here
    errors      converts pydantic's errors to messages for the user
"""
