"""What is wrong with a history.

- `wrong`: one thing that is wrong, and what it is about.
- `trouble`: what broke, and which deliveries it explains.
- `passed`: what need not be handled, and what is to be handled again.
- `forgotten`: a group that begins anew where a lone broker has forgotten it.
- `lost`: messages that nobody finished.
- `twice`: messages that were finished twice without a cause.
- `order`: in orderly queues, messages before their time, and two members at once.
- `leaving`: what handlers were given by a member that leaves.
- `frames`: frames that a member could not read.
- `ends`: members that fail, and members that do not end.
- `warned`: what members warn of although nothing broke.
- `commits`: offsets that were committed over messages that nobody had finished, or lowered without a cause.
- `falls`: commits below what a broker has, as of a slave's older offsets.
- `retries`: attempts that are too few, too many or too early, and dead letters without a reason.
- `broadcasting`: the same for each machine of a broadcasting group.
- `popped`: of groups that pop: what came again without a cause, too early, or too late.
- `java`: which queues Java members had, and what that explains.
- `judge`: all of it.
"""
