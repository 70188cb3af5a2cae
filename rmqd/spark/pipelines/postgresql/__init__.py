"""The sink `postgresql`: rows of a table, appended or by key, each batch exactly once.

Tasks copy a batch's rows to a staging table next to the table. Then the driver, in one transaction, moves the rows of
the attempts that Spark accepted, and records the batch in `rmqd_batches`. That table allows one driver for each group
and table: a starting driver takes a new epoch, and the batches of previous drivers are refused.
"""
