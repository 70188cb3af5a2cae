"""Typed handlers: functions of a decoded body, marked with `@rmqd.handler(json=Order)`.

`rmqd.plugins` makes handlers of them. Wrong annotations and missing packages raise HandlerFormError, which becomes a
configuration problem.

    decorator       `handler` and the object that it makes of a function
    callables       inspects functions, methods, partials and objects; all plugins use it
    annotations     the meaning of annotations, which are evaluated one by one
    dependencies    dependencies of functions: created once per process, and closed at its end
    form            the arguments of a function's parameters
    avro            Avro records
    decoders        decodes bodies, and explains invalid ones
    calls           calls the function for a group's batches, and decides about each message
"""
