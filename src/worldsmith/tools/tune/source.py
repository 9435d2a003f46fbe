"""The run to tune: its description in this process and on the command line of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from worldsmith.actions.find_parent import PARENT, start_of
from worldsmith.checkpoint.sources.first_weights import LOAD_PATH
from worldsmith.config.command_line.literals import read_text
from worldsmith.config.declare.search import Search, Searched, search_space
from worldsmith.config.errors import UserError
from worldsmith.config.load import load
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.paths import Path, parse_path, starts_with
from worldsmith.config.write.values import WORD, write
from worldsmith.dialects.cosmos_rl.names import spec_key
from worldsmith.dialects.cosmos_rl.spec_file import Spec, read_spec
from worldsmith.dialects.cosmos_rl.train.key_rules import FORM, RESUME
from worldsmith.dialects.cosmos_rl.train.model import NAME as SPEC_MODEL
from worldsmith.dialects.cosmos_rl.train.read_spec import is_train_spec, parent_of_spec
from worldsmith.dialects.translation import translate
from worldsmith.training.trainer import Trainer

SECTIONS = tuple(name for name in Trainer.Config.__dataclass_fields__ if name != "custom")


@dataclass(frozen=True)
class SpecFields:
    """Searchable keys of the training spec (Cosmos-RL or TAO) that describes a run, and the fields that they set."""

    spec: Spec
    targets: Mapping[str, Sequence[Path]]
    """Key of the spec → fields of the run that it sets."""
    given: Sequence[Path] = ()
    """Fields of the run that overrides set directly; they have precedence over the spec."""

    def key(self, path: str) -> str | None:
        """Returns the full key of the training spec for a key or alias; None if `path` is a config field of the run."""
        key = self.spec.form.aliases.get(path, path)
        return None if first_part(key) in SECTIONS else key

    def search_space(self) -> Iterator[Searched]:
        """Yields the searchable fields of the training spec. Their paths, conditions and ratios contain spec keys."""
        for found in search_space(self.spec.root):
            marks = tuple(in_keys(mark) for mark in found.marks)
            yield replace(found, path=spec_key(parse_path(found.path)), marks=marks)

    def replaced_by(self, key: str, paths: Sequence[Path]) -> Path | None:
        """Returns the first of the config fields `paths` that the spec key `key` also sets; None if no field matches.

        The spec key sets a field if one of `targets[key]` is the field, contains it, or is contained in it.
        """
        targets = self.targets.get(key, ())
        return next((path for path in paths for to in targets if starts_with(to, path) or starts_with(path, to)), None)


@dataclass(frozen=True)
class Source:
    """Run to tune: a recipe, config file, training spec or run folder, given by name or path, with overrides.

    For a training spec (Cosmos-RL or TAO), overrides that begin with a section of the run's config, such as
    "optimizer", change the config; all remaining overrides change the spec.
    """

    name: str
    words: Sequence[str] = ()
    parent: str | None = None
    """Run or result whose weights initialize the trials (--parent); None: the parent that the spec states, if any."""

    def with_parent_found(self) -> Source:
        """Returns a source with overrides that load the weights of the parent run as initial weights.

        The parent run is `parent` or, if None, the one that the training spec names. For a spec, an override also sets
        the parent's model. Returns the source itself if it has no parent run. Raises UserError if the parent run has no
        weights, or if another override sets the initial weights.
        """
        of_spec, of_run = self.split()
        parent = self.parent
        if of_spec is not None:
            parent, of_spec = parent_of_spec(self.name, of_spec, parent)
        if parent is None:
            return self
        if LOAD_PATH in map(key_of_word, of_run):
            raise UserError(f"{LOAD_PATH} and {PARENT} {parent} both set the initial weights; omit one of them")
        start, model = start_of(parent)
        given = [] if of_spec is None else [*of_spec, make_override(SPEC_MODEL, model)]
        return Source(self.name, [*given, *of_run, make_override(LOAD_PATH, start)])

    def load(self, words: Sequence[str] = (), *, keep_unset: bool = False) -> Loaded:
        """Returns the loaded config of the run, with the overrides of the source and then `words`. Raises ConfigError.

        `keep_unset`: keep references to unset environment variables, which are errors otherwise.
        """
        of_spec, of_run = self.split(words)
        return load(self.name, of_run, keep_unset=keep_unset, spec_words=of_spec)

    def command(self, words: Sequence[str] = (), *, processes: int = 1) -> list[str]:
        """Returns the arguments of the `worldsmith` command that trains the run.

        Args:
            words: Overrides in addition to those of the source.
            processes: Number of processes on this machine; above 1, `worldsmith launch` starts them.
        """
        of_spec, of_run = self.split(words)
        source = [self.name] if of_spec is None else ["--spec", self.name, *of_spec]
        parent = [PARENT, self.parent] if self.parent else []
        return launched(["train", *source, *parent, *(["--", *of_run] if of_run else [])], processes)

    def as_new_run(self) -> Source:
        """Returns the source with overrides that disable resuming, or itself if it does not resume.

        Raises ConfigError if the config is invalid.
        """
        if not self.resumes():
            return self
        kept = [word for word in self.words if key_of_word(word) not in RESUMES or not is_true(word)]
        found = replace(self, words=kept)
        return replace(found, words=[*kept, f"{RESUMES[not self.is_spec]}=false"]) if found.resumes() else found

    def resumes(self) -> bool:
        """Returns whether the config requests resuming the last saved run of its job group (`job.resume_newest`)."""
        return bool(self.load().tree.job.resume_newest)

    def split(self, words: Sequence[str] = ()) -> tuple[list[str] | None, list[str]]:
        """Splits the overrides of the source and `words` into (overrides of the training spec, overrides of the run).

        The first item is None if the source is not a training spec.
        """
        every = [*self.words, *words]
        if not self.is_spec:
            return None, every
        of_run = [word for word in every if first_part(key_of_word(word)) in SECTIONS]
        return [word for word in every if word not in of_run], of_run

    @cached_property
    def is_spec(self) -> bool:
        """Whether the source is a training spec of Cosmos-RL or TAO."""
        return is_train_spec([self.name])

    @cached_property
    def spec(self) -> SpecFields | None:
        """Searchable keys of the training spec; None for other sources. Mistakes in the spec are reported by `load`."""
        of_spec, of_run = self.split()
        if of_spec is None:
            return None
        translation = translate(spec := read_spec(FORM, self.name, of_spec))
        targets: dict[str, list[Path]] = {}
        for to, key in translation.sources.items():
            targets.setdefault(key, []).append(to)
        return SpecFields(spec, targets, [parse_path(key_of_word(word)) for word in of_run])

    def output_folder(self) -> str | None:
        """Returns the result folder that the training spec names; None if it names no folder, or without a spec."""
        named = (self.spec.spec.get(key) for key in FOLDERS if self.spec.spec.is_stated(key)) if self.spec else ()
        return next((folder.removeprefix("file://") for folder in named if folder), None)


RESUMES = (RESUME, "job.resume_newest")
"""Key of a training spec, and field of a run's config, that request resuming the last saved run."""
FOLDERS = ("results_dir", "train.output_dir")
"""Spec keys that name the folder of the results; the first one that is set is used."""


def launched(words: Sequence[str], processes: int) -> list[str]:
    """Returns the arguments `words` of a `worldsmith` command, after those of `launch` if `processes` is above 1."""
    return [*(["launch", "--nproc-per-node", str(processes)] if processes > 1 else []), *words]


def in_keys(mark: Search) -> Search:
    """Returns a copy of a `Search` annotation whose condition and ratio contain spec keys instead of config paths."""
    path, value = mark.condition
    when = f"{spec_key(parse_path(path))}={value}" if mark.when else ""
    return replace(mark, ratio_of=spec_key(parse_path(mark.ratio_of)) if mark.ratio_of else "", when=when)


def key_of_word(word: str) -> str:
    """Returns the name of the setting that an override, such as "optimizer.lr=1e-4", sets or removes."""
    return word.lstrip("+~").partition("=")[0]


def make_override(key: str, text: str) -> str:
    """Returns the override KEY=TEXT; the text is quoted only if it would not be parsed as this text without quotes."""
    return f"{key}={text if read_text(text, str | None) == text else write(text, WORD)}"


def is_true(word: str) -> bool:
    """Returns whether the override `word` (`PATH=VALUE`) has the value `true`, in upper or lower case."""
    return word.partition("=")[2].strip().lower() == "true"


def first_part(path: str) -> str:
    """Returns the first component of a dotted name, such as "optimizer" of "optimizer.lr"."""
    return path.partition(".")[0]
