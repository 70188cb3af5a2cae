"""Detects problems of a group and reports their cause, evidence and next step.

The checks do not change consumption. The only repair is the restart of a pull loop that hangs. Each problem is logged
once when it starts and once when it ends (`consumer.stats.problem`).

    watchdog        Watchdog: assignments that make no progress while messages wait
    broker_watch    BrokerWatch: brokers that are down
    recent_results  RecentResults: rates, and a handler that fails for all messages
    consistency     Consistency: different subscriptions of members; two members with one client id
    filter_check    before the first pull: whether brokers accept the group's SQL expressions
    kind_check      before the first pull: whether rmqd knows the kinds of the group's topics
"""
