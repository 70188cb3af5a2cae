"""deploy/rmqd.service: systemd accepts it without warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly.deploy.missing import require
from tests.nightly.deploy.test_unit import UNIT

MAX_EXPOSURE = 2.0  # out of 10; systemd rates values below 2 "OK"


@pytest.mark.process
def test_systemd_verifies_the_unit_without_warnings(tmp_path: Path) -> None:
    analyze = require("systemd-analyze", package="systemd")
    unit = tmp_path / "rmqd.service"
    # `verify` requires that the program exists; the installer sets its folder in the unit
    rmqd = Path(sys.executable).with_name("rmqd")
    unit.write_text(re.sub(r"^(Exec\w+)=\S+", rf"\1={rmqd}", UNIT.read_text(), flags=re.MULTILINE))

    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.process
def test_the_sandbox_limits_the_exposure() -> None:
    analyze = require("systemd-analyze", package="systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=yes", str(UNIT)], capture_output=True, text=True, check=False
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot judge a unit that is not running (that came with version 250)")

    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < MAX_EXPOSURE
