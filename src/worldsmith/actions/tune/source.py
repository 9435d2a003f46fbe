"""The run that is tuned: what describes it, in this process and on the command line of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.config.load import load
from worldsmith.config.specs.train.draft import is_train_spec
from worldsmith.config.tree.draft import Loaded
from worldsmith.training.trainer import Trainer

SECTIONS = tuple(name for name in Trainer.Config.__dataclass_fields__ if name != "custom")


@dataclass(frozen=True)
class Source:
    """A recipe's name, a file or a run folder, and the words that change it.

    Of a nested spec those words change the run that do not begin with a table of the spec.
    """

    name: str
    words: Sequence[str] = ()

    def load(self, words: Sequence[str] = (), *, keep_unset: bool = False) -> Loaded:
        """The run with further words. Raises ConfigError."""
        of_spec, of_run = self.split()
        return load(self.name, [*of_run, *words], keep_unset=keep_unset, spec_words=of_spec)

    def command(self, words: Sequence[str] = ()) -> list[str]:
        """The words of the `worldsmith` command that trains it."""
        of_spec, of_run = self.split()
        source = [self.name] if of_spec is None else ["--spec", self.name, *of_spec]
        return ["train", *source, "--", *of_run, *words]

    def split(self) -> tuple[list[str] | None, list[str]]:
        """The words of a spec, None without one, and those of the run."""
        if not is_train_spec(self.name):
            return None, list(self.words)
        of_run = [word for word in self.words if word.lstrip("+~").partition("=")[0].partition(".")[0] in SECTIONS]
        return [word for word in self.words if word not in of_run], of_run
