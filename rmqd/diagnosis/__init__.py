"""Why a group lags or does not consume: every cause, and the rules by which facts point to one. Pure: it asks nobody.

`rmqd diagnose` and `rmqd check --connect` judge by these rules what brokers and members say; a daemon's watchdog tells
what it sees of its own queues by the same causes. `client.looks.diagnosis` gathers the facts.

    causes         Problem, and each cause with its next step
    finding        Finding: a problem that a rule found; words that rules share
    failures       what an error that comes again and again means
    facts          Look: what was seen of a group at one moment
    subscriptions  in which points members consume differently
    cluster        rules about routes, permissions, settings, clocks
    members        rules about identities, subscriptions, modes, and who has which queue
    progress       rules about messages that wait, and handlers that fail
    daemon         what a daemon says of its own group
    judge          all rules together, and their order
"""
