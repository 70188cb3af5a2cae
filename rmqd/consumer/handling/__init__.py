"""Handler calls: from the messages of a process queue to the handler's decisions, carried out.

`batch_worker` is the hot path of the engine. Only its calls reach the handler, except for operators' messages;
`handler_threads` makes synchronous calls for it. `slots` lists the stages around a call. There are two services. A
concurrent group sends failed messages back. An ordered group (`consume_mode: orderly` or `order_by`) retries them in
place, before the messages that must not overtake them.
"""
