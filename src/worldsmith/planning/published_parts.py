"""A run whose frozen parts are not at hand is planned with those that were published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from worldsmith.config import Config
from worldsmith.files.errors import UserError
from worldsmith.models.model_files import Contents, PublishedPart, cached, hub_name, is_local


@dataclass(frozen=True, slots=True)
class Stated:
    """A run tree that can be built in a simulation."""

    config: Any
    assumptions: list[str]
    """A line for each part that was replaced."""
    reads_texts: bool
    """Whether its tokenizer is that of the run."""


@contextmanager
def with_published_parts(config: Any) -> Iterator[Stated]:
    """The run tree `config`, whose references are resolved, with its frozen parts at hand, within the block.

    A part whose files are neither in the folder that is named nor in the cache of the hub is replaced by a folder with
    the config of the published one. Nothing is downloaded.
    """
    config, said, reads_texts = deepcopy(config), [], True
    with tempfile.TemporaryDirectory(prefix="worldsmith-plan-") as folder:
        for number, (where, section) in enumerate(sections(config.model.config, "model.config")):
            part: PublishedPart | None = section.published()
            name = "" if part is None else getattr(section, part.field)
            why = why_not_at_hand(section, part) if part is not None and name else None
            if part is None or why is None:
                continue
            place = Path(folder) / str(number)
            write(place, part.contents)
            setattr(section, part.field, str(place))
            reads_texts &= not part.reads_texts
            said.append(f"{where}.{part.field} = '{name}': {why}; taken for it: {part.what}")
        yield Stated(config, said, reads_texts)


def sections(section: Config, path: str) -> Iterator[tuple[str, Any]]:
    """Every section of a tree that may stand for something published, with its path."""
    if hasattr(section, "published"):
        yield path, section
    for field in fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Config):
            yield from sections(value, f"{path}.{field.name}")


def why_not_at_hand(section: Any, part: PublishedPart) -> str | None:
    """Why the files that a section names cannot be used on this machine; None when they can."""
    name = getattr(section, part.field)
    if is_local(name):
        try:
            section.check_files()
        except (OSError, ValueError, UserError) as error:
            return str(error)
        return None
    hub = hub_name(name)
    found = hub is not None and any(cached(hub, patterns) is not None for patterns in part.places)
    return None if found else "not on this machine"


def write(folder: Path, contents: Contents) -> None:
    """The files of a published part."""
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            file.symlink_to(content)
        else:
            file.write_text(json.dumps(content) if isinstance(content, Mapping) else "")
