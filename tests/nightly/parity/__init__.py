"""The same configurations and handlers on both engines: a group's behaviour must not depend on its engine."""
