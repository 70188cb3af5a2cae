"""Requests of operators that a broker forwards to a member: from mqadmin and dashboards.

Of these requests only a reset affects consumption.

    requests            OperatorRequests: a response for each request code
    direct_consumption  one message handled by request, outside queues and slots
    running_info        the member's description, in the Java client's terms
    rates               rates of topics, and when a queue last made progress
    stacks              stacks of tasks and threads: the counterpart of a jstack
"""
