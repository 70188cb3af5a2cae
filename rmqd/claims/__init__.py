"""`deduplicate`: records the messages that a handler is handling, and the messages that it has handled.

A message is *claimed* before its handler is called, and *confirmed* after the handler has succeeded. A claim has an
owner (one run of a group in one process), a token, and a lease: another owner may claim the message if the lease was
not renewed in time. A confirmation is kept for the group's `keep`. For each message a store answers that the claim is
now the caller's, that another owner holds it, or that the message is confirmed.

Each call is one atomic step for all of its messages. It raises ClaimStoreError if the store fails, or if its answer is
lost.

    store             ClaimStore, the protocol of all stores; keys, leases, errors
    sqlite_store      a file, for the processes of one machine
    redis_store       Redis; each step is one script
    postgresql_store  a table in PostgreSQL
    opening           open_store: the store that a group's options name
"""
