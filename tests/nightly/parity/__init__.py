"""One set of configurations and handlers on both engines: what a group does must not depend on where it runs."""
