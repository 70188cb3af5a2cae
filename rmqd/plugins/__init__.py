"""Plugins that a configuration names: handlers, pipelines, strategies, hooks.

They are found by entry point or as `module:attribute`, and only named plugins are imported. Any error becomes a
configuration problem with its line. Except for its import, a plugin's code does not run before its group starts.
"""
