"""The effect of a hostile or damaged peer on a daemon: how long its event loop is blocked, and its memory."""
