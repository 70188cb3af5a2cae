"""The sink `postgresql`: rows of a table, appended or by key, each batch exactly once.

Tasks copy a batch's rows to a staging table next to the table. Then the driver, in one transaction, moves the rows of
the attempts that Spark accepted, and records the batch in `rmqd_batches`. That table allows one driver for each group
and table: a starting driver takes a new epoch, and the batches of previous drivers are refused.

    postgresql_sink   the driver: staging, the transaction, refused rows
    table_shape       the table as PostgreSQL describes it, and whether rows fit it
    statements        SQL; no I/O
    deletions         SQL for rows that may be deletions; no I/O
    order_kinds       records the meaning of the values in order columns
    row_copy          the tasks: rows to the staging table
    connections       connections to the database, and its errors in one line
"""
