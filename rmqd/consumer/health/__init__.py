"""Sees what is wrong without changing what is consumed, and says why, with evidence and a next step.

Everything here only looks, but for one repair: a pull loop that hangs is begun anew. What is found is a Problem
(`consumer.stats.problem`), logged once when it begins and once when it ends.

    watchdog        Watchdog: which assignments make no progress while messages wait
    broker_watch    BrokerWatch: brokers that are down
    recent_results  RecentResults: rates, and whether the handler fails at everything
    consistency     Consistency: whether the members subscribe alike; two members with one client id
    filter_check    whether brokers accept the group's SQL expressions, before the first pull
    kind_check      whether rmqd knows the kinds of the group's topics, likewise
"""
