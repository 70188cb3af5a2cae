"""The commands: each module one verb, registered by name in app.py."""
