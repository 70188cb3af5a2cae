"""Code of other distributions that a configuration names: handlers, pipelines, strategies, hooks.

They are found by entry point or as `module:attribute`, and only what is named is imported. Whatever goes wrong on the
way is a problem of the configuration, with its line. Nothing of a plugin runs before its group starts, except for its
import.

    runnable                  load_runnable: a configuration whose plugins are found and fit their options
    consumer_options          a group's settings as the engine is told them
    handlers, handler_plugin  handlers: finding them, and the forms that they may have
    typed_handlers            handlers of decoded bodies (`rmqd.typed`)
    middleware                functions around every call of a handler
    lifecycle                 the start and the stop of handlers that consist of parts
    pipelines                 pipelines, and functions of a sink
    strategies                allocate strategies
    offset_stores             offset stores, for `offset_store`
    hooks                     hooks: all that are installed
    entry_points, lookup      entry points by name; objects by name or `module:attribute`
    form, unknown_options     what plugins share: arguments, options, unknown keys in them
    catalogue                 what is installed, for `rmqd handlers`
"""
