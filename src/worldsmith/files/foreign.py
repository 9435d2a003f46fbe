"""Files of others in a folder of ours, which is about to be replaced."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

SHOWN = 5


def files_in(folder: Path) -> list[str]:
    """All files below a folder, by their paths in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def require_only(folder: Path, own: Collection[str], *, within: Collection[str] | None = None) -> None:
    """Raises FileExistsError when `folder`, or what is called `within` in it, holds other files than its `own`."""
    others = [name for name in files_in(folder) if name not in own]
    others = [name for name in others if within is None or Path(name).parts[0] in within]
    if others:
        shown = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        raise FileExistsError(f"{folder} holds files that were not written with it: {shown}; move them away first")
