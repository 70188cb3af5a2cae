"""The files of a configuration and the names in it, without the models, because shell completion waits for them."""

from __future__ import annotations

import os
from collections.abc import Mapping as ReadOnly
from pathlib import Path
from typing import Final

from rmqd.config.reading.yaml_tree import Entry, Mapping, Node, read_tree

ROOT_FILE: Final = "rmqd.yaml"
GROUPS_FOLDER: Final = "groups"
DEFAULT_FILES: Final = ("config/rmqd.yaml", "/etc/rmqd/rmqd.yaml")


def find_config(option: Path | None, environ: ReadOnly[str, str] = os.environ) -> Path:
    """Return the file or folder to load: `--config`, `$RMQD_CONFIG`, or an existing default. Raises
    FileNotFoundError.
    """
    for name, value in (("--config", option), ("$RMQD_CONFIG", environ.get("RMQD_CONFIG"))):
        if value:
            if not Path(value).exists():
                raise FileNotFoundError(f"{value}: no such file or folder, named by {name}")
            return Path(value)
    for default in DEFAULT_FILES:
        if Path(default).exists():
            return Path(default)
    raise FileNotFoundError(
        f"no configuration found: neither {' nor '.join(DEFAULT_FILES)} exists; name one with --config or $RMQD_CONFIG"
    )


def config_files(path: Path) -> tuple[Path, list[Path]]:
    """Return the root file at a path, and the group files that belong to it."""
    if path.is_dir():
        root_file, folder = path / ROOT_FILE, path
    elif path.name == ROOT_FILE:
        root_file, folder = path, path.parent
    else:
        return path, []
    group_files = (folder / GROUPS_FOLDER).glob("*.y*ml")
    return root_file, sorted(file for file in group_files if not file.name.startswith("."))


def configured_names(path: Path) -> dict[str, list[str]]:
    """Return the topics of each group in a configuration, as far as it can be read, without validation. Raises
    OSError.
    """
    root_file, group_files = config_files(path)
    root, *others = (_tree(file) for file in (root_file, *group_files))
    groups = dict(_below(root, "groups").entries)
    for file, tree in zip(group_files, others, strict=True):
        if "subscriptions" in tree.entries:
            groups[file.stem] = Entry(tree.place, tree)
        else:
            groups |= (_below(tree, "groups") if "groups" in tree.entries else tree).entries
    return {name: list(_below(entry.node, "subscriptions").entries) for name, entry in groups.items()}


def _tree(file: Path) -> Mapping:
    tree = read_tree(file.read_text("utf-8-sig", errors="replace"), str(file)).tree
    return tree if isinstance(tree, Mapping) else Mapping(str(file), {})


def _below(node: Node, key: str) -> Mapping:
    entry = node.entries.get(key) if isinstance(node, Mapping) else None
    return entry.node if entry is not None and isinstance(entry.node, Mapping) else Mapping(node.place, {})
