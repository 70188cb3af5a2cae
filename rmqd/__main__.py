"""`python -m rmqd` is `rmqd`."""

from rmqd.cli.app import main

main()
