"""The commands, one module each. Large dependencies are imported when the command that needs them runs.

A command prints text, or JSON with `-o json`. Exit codes are in `rmqd.exit_codes`.

    app, command_list                         `rmqd` itself; its commands by name, with the first sentence of their help
    commands, complete, man                   the common parts of commands; shell completion; the manual page
    run, worker                               the daemon; the hidden command of its worker processes
    diagnose                                  why a group lags or does not consume
    check, connect, pop_check                 `rmqd check`, and `--connect`, which also checks the cluster
    schema, handlers                          the JSON Schema; installed handlers and pipelines
    status, control, daemon_client            the running daemon: its status; pause, resume, reload; its HTTP endpoint
    top                                       a live view of the running daemon
    groups_list, groups_show                  the groups of a cluster
    group_mode                                whether a group pops or pulls
    topics_list, topics_show                  the topics of a cluster
    offsets_show                              a group's offsets in its queues
    offsets_reset, offsets_restore            reset a group's offsets in a topic, and restore them
    offsets_change, offsets_backup            their common steps; the file with the previous offsets
    dlq_list, dlq_show                        dead letters
    dlq_replay, dlq_purge, dlq_choice         replay and purge dead letters; options that select them
    message_get, message_query                single messages
    tail                                      messages as they arrive
    try_group, try_report                     run a handler on real messages
    replay                                    replay a time window under a shadow group
    own_group                                 a configured group whose handler a command runs
    moment                                    times in options
    message_text                              messages as text, and as JSON
    against_cluster, shared_options           options of commands against a cluster; sharing options between commands
    lag, send, cluster, look                  more commands against a cluster, and their common parts
    confirm                                   the plan and question before a change of a cluster
    broker, demo                              the embedded broker; the demo
    new_handler, new_project                  create a project for a handler; its files
    test, test_watch                          cases for handlers; run again after each change
    spark_run, spark_submit, spark_pack       groups on Spark without the daemon
    spark_compact                             compact small files of a group's sink
    render, progress                          tables and lines; the progress of a command
"""
