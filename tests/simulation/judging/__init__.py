"""The faults of a history.

- `wrong`: one fault.
- `trouble`: a failure, and the deliveries that it explains.
- `passed`: messages that may be skipped, or must be handled again.
- `forgotten`: a group that starts as a new one, because its only broker has forgotten it.
- `lost`: messages that no member finished.
- `twice`: messages that were finished twice without a cause.
- `order`: orderly queues with messages out of order, or with two members at once.
- `leaving`: messages delivered to handlers of a member that leaves.
- `frames`: frames that a member could not read.
- `ends`: members that fail, and members that do not stop.
- `warned`: warnings of members before the first failure.
- `commits`: offsets committed past unfinished messages, or lowered without a cause.
- `falls`: commits below the stored offset, for example with a slave's older offsets.
- `retries`: attempts that are missing, too many or too early, and dead letters without a reason.
- `broadcasting`: the same checks for each machine of a broadcasting group.
- `popped`: messages of pop groups that were redelivered without a cause, too early, or too late.
- `java`: the queues of Java members, and the faults that they explain.
- `judge`: all checks.
"""
