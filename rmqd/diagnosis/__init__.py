"""The causes of lag and of groups that do not consume, and the rules that derive them from facts. Pure: no requests.

`rmqd diagnose` and `rmqd check --connect` apply these rules to the responses of brokers and members. A daemon's
watchdog reports problems of the daemon's queues under the same causes. `client.looks.diagnosis` gathers the facts.

    causes         Problem, and each cause with its next step
    finding        Finding: a problem that a rule found; words that rules share
    failures       the meaning of a repeated error
    facts          Look: the facts about a group at one moment
    subscriptions  differences between the members' subscriptions
    cluster        rules about routes, permissions, settings, clocks
    members        rules about identities, subscriptions, modes, and queue owners
    progress       rules about waiting messages and failing handlers
    daemon         findings from a daemon's status of its group
    judge          applies all rules, and orders the findings
"""
