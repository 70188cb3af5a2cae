"""The manual page, as `man` shows it."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.in_process import rmqd
from tests.nightly.deploy.missing import require


@pytest.mark.process
def test_man_renders_the_page_without_complaint() -> None:
    done = subprocess.run(
        [require("groff", package="groff-base"), "-man", "-Tutf8", "-ww"],
        input=rmqd("--man").out.encode(),
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
