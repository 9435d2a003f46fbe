"""Small weights and vocabularies that ship with the package, for the demo and the tests."""

from __future__ import annotations

from pathlib import Path


def asset_path(name: str) -> Path:
    """Returns the folder of a shipped asset, such as ``tiny_vae``; raises FileNotFoundError for an unknown name."""
    root = Path(__file__).parent
    folder = root / name
    if not folder.is_dir():
        known = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("__"))
        raise FileNotFoundError(f"unknown asset '{name}'; available: {', '.join(known) or 'none'}")
    return folder


def asset_name(path: str | Path) -> str | None:
    """Returns the name of the shipped asset if `path` is its folder, in any installation of the package; else None."""
    *folders, name = Path(path).parts or [""]
    return name if folders[-2:] == ["worldsmith", "assets"] else None


def is_shipped(path: str | Path) -> bool:
    """Returns whether a file or folder is a shipped asset, or inside one."""
    return Path(__file__).parent in Path(path).resolve().parents
