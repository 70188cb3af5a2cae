"""The main program of a group's driver in the image: --config /etc/rmqd/rmqd.yaml --group NAME."""

import sys

from rmqd.spark.submit.submitted import main

if __name__ == "__main__":
    sys.exit(main())
