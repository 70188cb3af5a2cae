"""The program `rmqd`, which is also `python -m rmqd`. It sets the signal handlers before it imports the commands."""

import signal
import sys

from rmqd.runtime.kept_reload import RememberedReload


def main() -> None:
    """Run the command line. Called by the `rmqd` script and by `python -m rmqd`."""
    is_daemon = sys.argv[1:2] in (["run"], ["dev"])
    if is_daemon or sys.argv[1:2] == ["_worker"]:  # otherwise SIGHUP would end the process during its imports
        signal.signal(signal.SIGHUP, RememberedReload())
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports prints no traceback
    from rmqd.cli import app

    if interrupt is signal.default_int_handler and not is_daemon:
        signal.signal(signal.SIGINT, interrupt)
    app.main()


if __name__ == "__main__":
    main()
