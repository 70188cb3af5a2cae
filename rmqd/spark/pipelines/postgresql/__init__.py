"""The sink `postgresql`: rows of a table, added or by key, each batch exactly once.

Tasks copy a batch's rows to a staging table beside the table. Then the driver, in one transaction, moves those of the
attempts that Spark has accepted, and notes the batch in `rmqd_batches`. That table knows one driver of each group and
table: one that begins takes a new epoch, and a former driver that wakes up late is refused.

    postgresql_sink   the driver: staging, the transaction, what is refused
    table_shape       the table as PostgreSQL describes it, and what rows can go there
    statements        SQL; pure
    deletions         SQL where rows may be deletions; pure
    order_kinds       the note of what the table's order counts by
    row_copy          the tasks: rows to the staging table
    connections       connections to the database, and its errors in one line
"""
