"""The handler of SIGHUP until the daemon can reload. It imports nothing, so that it is there from the start."""


class KeptReload:
    """Keeps the request for a reload, by which the process would end otherwise."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, number: int, frame: object) -> None:
        """Note the signal; `signals_handled` then reloads."""
        self.is_requested = True
