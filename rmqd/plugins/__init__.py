"""Plugins that a configuration names: handlers, pipelines, middleware, allocate strategies, hooks and offset stores.

Plugins are found by entry point or as `module:attribute`. Only named plugins are imported. A plugin's error becomes a
configuration problem with its line. A check imports plugins. Their functions are not called before the group starts.
"""
