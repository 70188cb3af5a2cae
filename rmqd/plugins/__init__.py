"""Plugins that a configuration names: handlers, pipelines, strategies, hooks.

They are found by entry point or as `module:attribute`, and only named plugins are imported. Any error becomes a
configuration problem with its line. Except for its import, a plugin's code does not run before its group starts.

    runnable                  load_runnable: a configuration whose plugins exist and accept their options
    consumer_options          converts a group's settings to the engine's options
    handlers, handler_plugin  finds handlers, and checks their form
    typed_handlers            handlers of decoded bodies (`rmqd.typed`)
    middleware                functions around every call of a handler
    lifecycle                 start and stop of handlers that consist of parts
    pipelines                 pipelines, and functions of a sink
    strategies                allocate strategies
    offset_stores             offset stores, for `offset_store`
    hooks                     hooks: all installed ones
    entry_points, lookup      entry points by name; objects by name or `module:attribute`
    form, unknown_options     shared by plugins: arguments, options, unknown keys in them
    catalogue                 the installed plugins, for `rmqd handlers`
"""
