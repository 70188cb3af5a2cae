"""`deduplicate`: where a group notes which messages are with a handler, and which are done with.

A message is *claimed* before its handler is called, and *confirmed* once the handler has done its work. A claim has an
owner (one run of a group in one process), a token of its own, and a lease: what its owner does not renew in time, any
other may take. A confirmation stands for as long as the group's `keep` says. What a store says of a message is one of
three things: the claim is the caller's, somebody else has it, or it is confirmed.

Each call is one step for all of its messages, which happens whole or not at all. It raises ClaimStoreError where the
store does not do it, or does not say that it did.

    store             ClaimStore, what each store can do; keys, leases, errors
    sqlite_store      a file, for the processes of one machine
    redis_store       a Redis, by scripts that run alone
    postgresql_store  a table of a PostgreSQL
    opening           open_store: the store that a group's options name
"""
