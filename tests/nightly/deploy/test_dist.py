"""`make dist`: the wheels and sdists, checked and tested in clean environments."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile

import pytest

from tests.nightly.deploy.test_dockerfile import TOP


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_distributions_are_complete_and_work_alone() -> None:
    subprocess.run(["make", "dist"], cwd=TOP, check=True, timeout=1700)

    sdists, wheels = sorted((TOP / "dist").glob("*.tar.gz")), sorted((TOP / "dist").glob("*.whl"))
    assert (len(sdists), len(wheels)) == (2, 2)
    for sdist in sdists:
        with tarfile.open(sdist) as archive:
            assert not [name for name in archive.getnames() if "/tests/" in name]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as files:
            [metadata] = [files.read(name).decode() for name in files.namelist() if name.endswith("METADATA")]
        links = re.findall(r"\]\(([^)]+)\)", metadata)
        assert [link for link in links if not link.startswith(("http", "#"))] == []
