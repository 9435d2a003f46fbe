"""Reads sample files (JSON, JSONL, YAML, or text with one prompt per line) and reports all mistakes at once."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.declare.value_types import is_reference, mismatch, union_members
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree import paths
from worldsmith.config.tree.checks import check_sections
from worldsmith.config.tree.read_config import Reader
from worldsmith.config.write.json_text import read_json
from worldsmith.config.yaml.yaml_text import read_yaml
from worldsmith.files.lines import read_lines
from worldsmith.sampling.sample_settings import NOT_HERE, PROMPT_UPSAMPLER, Sample, SampleSettings

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".txt")
NUMBERED = (".jsonl", ".txt")
_Settings = TypeVar("_Settings", bound=SampleSettings)
IMAGES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings of a sample that come from one source: the sample file, its defaults file, or the flags."""

    source: str
    """Name of the source for messages, such as a file with line number."""
    settings: SampleSettings
    folder: Path
    """Folder to which paths in the settings are relative."""


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """One checked sample of a sample file, with its final name and the sources of its settings.

    `sample` has only the values of the sample file. `name` is `sample.name`, or a name derived from the file if that is
    empty.
    """

    name: str
    sample: Sample
    layers: list[Layer]
    """Settings by source in order of precedence: the sample itself, then, if it sets `defaults_file`, the settings in
    that file, which apply where the sample sets nothing."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Unchecked data of one sample in a sample file, with its default name and the locations for messages.

    `line` is the line of the sample in the file (None: unknown), `spans` the location of each value by its path in
    the data, and `source` the path of the sample in the data.
    """

    name: str
    line: int | None
    data: Any
    spans: Mapping[paths.Path, Span]
    source: paths.Path


def read_files(patterns: Sequence[str]) -> list[SampleEntry]:
    """Reads and checks sample files, which describe the videos and images to generate.

    Args:
        patterns: Paths, or glob patterns such as ``"inputs/*.json"``.

    Returns:
        The samples in the order of the files; their names are unique.

    Raises:
        ConfigError: If files cannot be read or have mistakes; the message lists the mistakes of all files.
    """
    problems: list[Problem] = []
    found: list[tuple[SampleEntry, Place]] = []
    for file in find_files(patterns, problems):
        try:
            for part in read_parts(file, problems):
                entry = read_entry(file, part, problems)
                found += [(entry, Place(str(file), part.line))] if entry else []
        except ConfigError as error:
            problems += error.problems
        except (ValueError, OSError) as error:
            problems.append(Problem("", str(error), place=Place(str(file))))
    taken: dict[str, Place] = {}
    for entry, place in found:
        if entry.name in taken:
            other = taken[entry.name]
            where = f"{other.file}{'' if other.line is None else f':{other.line}'}"
            message = f"the sample in {where} is also named '{entry.name}'"
            problems.append(Problem("", message, hint="give each sample its own 'name'", place=place))
        taken.setdefault(entry.name, place)
    if problems:
        raise ConfigError(problems, where="the sample files")
    return [entry for entry, _ in found]


def parse_line(line: str) -> dict[str, str]:
    """Returns the settings in a line of a text file: a prompt, or prompt@@image path as in CogVideo's SAT code."""
    prompt, mark, image = line.strip().rpartition("@@")
    return {"prompt": prompt.strip(), "vision_path": image.strip()} if mark else {"prompt": line.strip()}


def find_files(patterns: Sequence[str], problems: list[Problem]) -> list[Path]:
    """Returns the sample files that match paths or glob patterns, without duplicates.

    A pattern without a file and a file of another type are added to `problems`.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        is_pattern = glob.has_magic(pattern) and not Path(pattern).exists()
        names = sorted(glob.glob(pattern, recursive=True)) if is_pattern else [pattern]
        if not names:
            problems.append(Problem("", f"no file matches {pattern}"))
        for file in map(Path, names):
            if file.suffix.lower() in SUFFIXES:
                found[file] = None
            else:
                expected = ", ".join(SUFFIXES)
                problems.append(Problem("", "no sample files", expected=expected, found=file.suffix or "no suffix",
                                        place=Place(str(file))))  # fmt: skip
    return list(found)


def read_parts(file: Path, problems: list[Problem]) -> Iterator[FilePart]:
    """Yields the unchecked data of each sample in a file; lines that are not valid JSON are added to `problems`.

    Raises:
        ConfigError: If a JSON or YAML file cannot be read or parsed.
        ValueError: If the file has no samples.
        OSError: If a text or JSON Lines file cannot be read.
    """
    kind, stem = file.suffix.lower(), file.stem
    if kind in NUMBERED:
        lines = [(number, line) for number, line in enumerate(read_lines(file), start=1) if line.strip()]
        if not lines:
            raise ValueError("the file has no samples; expected one sample per line")
        for count, (number, line) in enumerate(lines):
            name = f"{stem}_{count}"
            if kind == ".txt":
                yield FilePart(name, number, parse_line(line), {}, ())
                continue
            try:
                document = read_json(line, str(file))
            except ConfigError as error:
                problems += [replace(p, place=on_line(p.place, number, file)) for p in error.problems]
                continue
            spans = {
                path: Span(on_line(span.key, number, file), on_line(span.value, number, file))
                for path, span in document.spans.items()
            }
            yield FilePart(name, number, document.data, spans, ())
        return
    text = read_config_text(file)
    document = read_json(text, str(file)) if kind == ".json" else read_yaml(text, str(file))
    if not isinstance(document.data, list):
        yield FilePart(stem, None, document.data, document.spans, ())
        return
    if not document.data:
        raise ValueError("the file has no samples; expected a table of settings, or a list of tables")
    for index, data in enumerate(document.data):
        place = document.spans.get((index,))
        yield FilePart(f"{stem}_{index}", place.key.line if place else None, data, document.spans, (index,))


def on_line(place: Place | None, number: int, file: Path) -> Place:
    """Converts a location in the text of one line to a location in the file.

    Args:
        place: Location in the text of the line; None: the complete line.
        number: Number of the line in the file, from 1.
        file: The file.
    """
    return Place(str(file), number) if place is None else replace(place, line=number)


def read_entry(file: Path, part: FilePart, problems: list[Problem]) -> SampleEntry | None:
    """Checks one sample of a sample file, and reads the settings file that its field `defaults_file` names.

    Args:
        file: The sample file.
        part: Unchecked data of the sample.
        problems: List to which the mistakes in both files are added.

    Returns:
        The sample with its settings; without those of the defaults file if they are invalid. None if the sample itself
        is invalid.
    """
    sample = read_sample_settings(part, file, Sample, problems)
    if sample is None:
        return None
    where = f"{file}" if part.line is None else f"{file}:{part.line}"
    layers = [Layer(where, sample, file.parent)]
    if sample.defaults_file is not None:
        below = file.parent / sample.defaults_file
        try:
            (given, *others) = read_parts(below, problems)
            if others:
                raise ValueError("a defaults file must contain one table of settings, found several samples")
            defaults = read_sample_settings(given, below, SampleSettings, problems)
            layers += [Layer(str(below), defaults, below.parent)] if defaults else []
        except ConfigError as error:
            problems += error.problems
        except (ValueError, OSError) as error:
            problems.append(Problem("defaults_file", str(error), place=Place(str(below))))
    return SampleEntry(sample.name or part.name, sample, layers)


def read_sample_settings(part: FilePart, file: Path, cls: type[_Settings], problems: list[Problem]) -> _Settings | None:
    """Converts the data of a sample or of its defaults to typed settings; returns None if they are invalid.

    Args:
        part: The data.
        file: File with the data.
        cls: Class of the settings.
        problems: List to which mistakes are added.
    """
    mistakes: list[Problem] = []
    places: dict[paths.Path, Place] = {}
    here = Place(str(file), part.line)
    if not isinstance(part.data, dict):
        problems.append(replace(mismatch((), "a table of the sample's settings", part.data), place=here))
        return None
    reader = Reader(mistakes, spans=part.spans, places=places)
    settings = reader.section([cls], None, drop_unused_fields(part, mistakes), (), part.source)
    if isinstance(settings, cls):
        for name, hint in field_hints(cls).items():
            if is_reference(getattr(settings, name)) and str not in union_members(hint):
                mistakes.append(Problem(name, "references are not supported in sample files"))
        mistakes += check_sections(settings, [problem.keys for problem in mistakes if problem.path])
    problems += [problem.at(here) for problem in locate(mistakes, places)]
    return None if mistakes else settings


def drop_unused_fields(part: FilePart, mistakes: list[Problem]) -> dict[str, Any]:
    """Returns the data of a sample without fields of `cosmos_framework` sample files that have no effect here.

    If such a field has a value (not null, false or empty), a mistake is added to `mistakes`. Structured
    captions and integer resolution buckets are converted to strings.
    """
    data = {}
    for key, value in part.data.items():
        reason = NOT_HERE.get("prompt_upsampling" if str(key).startswith(PROMPT_UPSAMPLER) else key)
        if reason is None:
            data[key] = value
        elif value not in (None, False, "", [], {}):
            span = part.spans.get((*part.source, key))
            message = "this field of the released sample format has no effect here"
            mistakes.append(Problem(key, message, hint=reason, place=span.key if span else None))
    for key in ("prompt", "negative_prompt"):
        if isinstance(data.get(key), dict):
            data[key] = json.dumps(data[key], ensure_ascii=False)
    if type(data.get("resolution")) is int:
        data["resolution"] = str(data["resolution"])
    return data


def is_image_file(path: str) -> bool:
    """Returns whether a path has the suffix of an image file."""
    return Path(path).suffix.lower() in IMAGES


def read_condition(path: str, frames: int, *, last: bool = False) -> Tensor:
    """Reads a conditioning image, or frames of a conditioning video, in original size and rotated upright.

    Args:
        path: The file; images are recognized by suffix.
        frames: Number of frames to read from a video.
        last: Whether the last frames of the video are read. False: the first ones.

    Returns:
        uint8 [3, T, H, W]; T is 1 for an image, and smaller than `frames` for a shorter video.

    Raises:
        ValueError: If the file cannot be read.
    """
    from worldsmith.sampling.write_media import read_image

    if is_image_file(path):
        try:
            return read_image(path)[:, None]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from None
    import torch

    from worldsmith.data.clips.clip_frames import read_ending, read_opening
    from worldsmith.data.stream.errors import SampleError

    try:
        return torch.from_numpy((read_ending if last else read_opening)(path, frames))
    except SampleError as error:
        raise ValueError(f"{path}: {error.detail} ({error.reason})") from None
