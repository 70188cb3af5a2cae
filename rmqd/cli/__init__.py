"""The commands, one module each. Everything heavy is imported when its command runs.

A command prints for people, or JSON with `-o json`; exit codes are those of `rmqd.exit_codes`.

    app, command_list                         `rmqd` itself; its commands by name, with the first sentence of each help
    commands, complete, man                   what all have in common; what shells complete; the manual page
    run, worker                               the daemon; the hidden command of its worker processes
    diagnose                                  why a group lags or does not consume
    check, connect, pop_check                 `rmqd check`, and with `--connect` what the cluster says
    schema, handlers                          the JSON Schema; installed handlers and pipelines
    status, control, daemon_client            the running daemon: its status; pause, resume, reload; its HTTP endpoint
    top                                       the running daemon, live
    groups_list, groups_show                  the groups of a cluster
    group_mode                                whether a group pops or pulls
    topics_list, topics_show                  the topics of a cluster
    offsets_show                              where a group stands in its queues
    offsets_reset, offsets_restore            moving a group in a topic, and moving it back
    offsets_change, offsets_backup            the course that these share; the file with the offsets before
    dlq_list, dlq_show                        dead letters
    dlq_replay, dlq_purge, dlq_choice         having them handled again, settling them; which of them
    message_get, message_query                single messages
    tail                                      messages as they come
    try_group, try_report                     a handler over real messages
    replay                                    a window handled again under a shadow group
    own_group                                 a group of the configuration whose handler a command runs
    moment                                    times that options take
    message_text                              messages for people, and as JSON
    against_cluster, shared_options           the options that these share; how commands share options
    lag, send, cluster, look                  more commands against a cluster, and what they share
    confirm                                   what is shown and asked before a cluster is changed
    broker, demo                              the embedded broker; the demo
    new_handler, new_project                  a handler's project to begin with; its files
    test, test_watch                          cases for handlers; run again at each change
    spark_run, spark_submit, spark_pack       groups on Spark without the daemon
    spark_compact                             small files of a group's sink made large
    render, progress                          tables and lines; how far a command is
"""
