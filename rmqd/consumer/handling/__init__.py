"""Handler calls: takes messages from process queues, calls the handler, and carries out its decisions.

`batch_worker` is the hot path of the engine. It makes all handler calls, except operators' calls and a canary's calls
in shadow mode; `handler_threads` makes synchronous calls for it. `slots` lists the stages around a call. There are two
services. A concurrent group sends failed messages back. An ordered group (`consume_mode: orderly` or `order_by`)
retries failed messages in place, before the messages that must not overtake them.
"""
