"""Typed handlers: functions of a decoded body, as `@rmqd.handler(json=Order)` marks them.

`rmqd.plugins` makes a handler of one. What is wrong with its annotations, or not installed, is a HandlerFormError,
which becomes a problem of the configuration.

    decorator       `handler` and the object that it makes of a function
    callables       how functions, methods, partials and objects are inspected; all plugins use it
    annotations     what annotations stand for: evaluated one by one
    dependencies    what functions depend on: made once per process, and closed at its end
    form            which parameter of a function gets what
    avro            records of Avro
    decoders        bodies to values, and what is wrong with a body
    calls           the batches of a group as calls of the function, and what becomes of each message
"""
