"""Builds the native core (rmqd/wire/core.py) if there is a C compiler, and adds the documentation to wheels."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags
from setuptools import Distribution, Extension


class NativeCoreHook(BuildHookInterface[Any]):
    """Compiles the extension next to its source, for wheels and for editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":  # an editable installation has the folder
            build_data["force_include"] |= {str(page): f"rmqd/{page}" for page in Path("docs").rglob("*.md")}
        source = Path("rmqd/wire/native.c")
        macros = [("SOURCE_CRC", f"{crc32(source.read_bytes())}UL")]
        extension = Extension(
            "rmqd.wire.native", [str(source)], define_macros=macros, py_limited_api=True, optional=True
        )
        command = Distribution({"name": "rmqd", "ext_modules": [extension]}).get_command_obj("build_ext")
        command.inplace = True
        command.ensure_finalized()
        for earlier in Path("rmqd/wire").glob("native*.so"):
            earlier.unlink()
        command.run()
        built = [str(path) for path in Path("rmqd/wire").glob("native*.so")]
        if built:
            build_data["artifacts"] += built
            build_data["pure_python"] = False
            # The binary uses the limited API, so the wheel is for Python 3.11 and later; hatchling's infer_tag names
            # only the Python of the build. Like infer_tag, it does not claim to run on other distributions.
            tags = (str(tag) for tag in sys_tags() if not tag.platform.startswith(("manylinux", "musllinux")))
            build_data["tag"] = next(tag for tag in tags if tag.startswith("cp311-abi3-"))
