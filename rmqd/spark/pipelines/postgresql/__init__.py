"""The sink `postgresql`: appends rows to a table, or replaces rows by key, each batch exactly once.

Tasks copy a batch's rows to a staging table in the table's schema. Then the driver, in one transaction, moves the rows
of the task attempts that Spark accepted, and records the batch in `rmqd_batches`. This record allows one driver for
each group and table: a starting driver increases the epoch, and batches of drivers with a lower epoch are refused.
"""
