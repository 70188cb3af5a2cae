"""What operators ask of a member through a broker: mqadmin, dashboards.

Nothing here changes what is consumed, except for a reset, which is the order to do so.

    requests            OperatorRequests: one answer for each request code
    direct_consumption  one message handled by request, beside queues and slots
    running_info        how the member describes itself, in the Java client's words
    rates               rates of topics, and when a queue moved last
    stacks              stacks of tasks and threads: our answer to a jstack
"""
