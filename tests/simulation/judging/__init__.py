"""What is wrong with a history.

- `wrong`: one thing that is wrong, and what it is about.
- `trouble`: what broke, and which deliveries it explains.
- `passed`: what need not be handled, and what is to be handled again.
- `lost`: messages that nobody finished.
- `twice`: messages that were finished twice without a cause.
- `order`: in orderly queues, messages before their time, and two members at once.
- `ends`: members that fail, and members that do not end.
- `commits`: offsets that were committed over messages that nobody had finished.
- `retries`: attempts that are too few, too many or too early, and dead letters without a reason.
- `judge`: all of it.
"""
