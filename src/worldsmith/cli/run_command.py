"""Commands that are actions on a run config: their flags, and the arguments that describe the run."""

from __future__ import annotations

import inspect
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, cast, get_args

from worldsmith.actions.action import user_errors
from worldsmith.actions.registry import command_classes
from worldsmith.actions.run_action import RunAction
from worldsmith.cli import run_source
from worldsmith.cli.action_command import JSON, OPTIONS, SETTINGS, is_first, load_settings, print_result
from worldsmith.cli.spec_and_parent import leave_parent_out
from worldsmith.config.command_line.command_flags import Words
from worldsmith.config.command_line.typed_flags import TypedFlag
from worldsmith.config.declare.configurable import field_hints
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import Range, annotated_hints
from worldsmith.config.declare.value_types import fits, union_members
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded, finish
from worldsmith.config.tree.references import Kept
from worldsmith.monitor.terminal_text import print_warning

ABOUT_RUNS = "Every value of the run is also a flag, and arguments after -- are overrides, as for `worldsmith train`."
SETTINGS_HELP = "TOML, YAML or JSON file with values of the flags below; flags override the file"


class RunCommand:
    """A command that works on the config of a run, such as `worldsmith plan`, implemented by a `RunAction` class.

    It has the members of a module that implements a command: `HELP`, `add_arguments`, `read_words`, `check` and `run`.
    """

    read_words = staticmethod(run_source.read_words)

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = cast(type[RunAction], command_classes(name)[""])
        self.HELP, _, self.epilog = (inspect.getdoc(self.kind) or "").partition("\n\n")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the source of the run, and the fields of the action as flags, to a parser."""
        run_source.add_source_arguments(parser)
        parser.add_argument(SETTINGS, metavar="FILE", help=SETTINGS_HELP)
        config = self.kind.Config
        aliases = {name: alias for alias, name in self.kind.aliases.items()}
        docs, hints = field_docs(config), annotated_hints(config)
        for name, hint in hints.items():
            flags = [*filter(None, [aliases.get(name)]), f"--{name.replace('_', '-')}"]
            options: dict[str, Any] = {"help": " ".join(docs[name].split()), "default": SUPPRESS}
            if hint is bool:
                parser.add_argument(*flags, action="store_true", **options)
                continue
            limits = [limit for member in union_members(hint) for limit in get_args(member)[1:]]
            least = next((limit.ge for limit in limits if isinstance(limit, Range)), None)
            kind: Callable[[str], Any] = str if least is None else run_source.integer_from(int(least))
            parser.add_argument(*flags, type=kind, metavar=self.kind.metavars.get(name, "N"), **options)
        parser.add_argument(JSON, action="store_true", help=OPTIONS[JSON])
        parser.epilog = f"{self.epilog} {ABOUT_RUNS}".lstrip()

    def action(self, args: Namespace) -> Any:
        """Builds the action from parsed arguments, and prints the warnings about its settings.

        Raises ConfigError or UserError for what the user can fix.
        """
        given = {name: value for name, value in vars(args).items() if name in field_hints(self.kind.Config)}
        flags = [TypedFlag(name, () if value is True else (str(value),)) for name, value in given.items()]
        words = Words(flags, own={SETTINGS: args.settings} if args.settings else {})
        settings = load_settings(f"worldsmith {self.name}", self.kind, words, [])
        for warning in settings.warnings if is_first() else ():
            print_warning(warning)
        return settings.tree.build(run=GivenWords(args))

    def check(self, args: Namespace) -> None:
        """Checks the action and the run config that parsed arguments describe, without running the action.

        Raises ConfigError or UserError for what the user can fix.
        """
        with user_errors():
            self.action(args).check()

    def run(self, args: Namespace) -> int:
        """Runs the action that parsed arguments describe, prints its result and returns the exit code.

        Raises ConfigError or UserError for what the user can fix.
        """
        with user_errors():
            return print_result(self.action(args).run(), as_json=args.json)


@dataclass(frozen=True)
class GivenWords:
    """Source of a run config on the command line (recipe or file, flags and overrides); implements `RunArguments`."""

    args: Namespace

    def load(self, more: Sequence[str] = (), *, keep_unset: Kept = False) -> Loaded:
        args = copy(self.args)
        args.overrides = [*args.overrides, *more]
        return run_source.load_run(args, keep_unset=keep_unset)[0]

    def unknown_source(self) -> str | None:
        source: str | None = self.args.source
        return None if source is None or run_source.is_source_name(source) else source

    def load_for_dataset(self, recipe: str, dataset: Any) -> Loaded:
        args = copy(self.args)
        args.source = recipe
        draft, _, overrides = run_source.draft_run(args)
        loader = draft.tree.dataloader_train
        if type(loader.dataset) is type(dataset):
            loader.dataset.path = dataset.path
        elif fits(dataset, field_hints(type(loader))["dataset"]):
            loader.dataset = dataset
        else:
            found = type(loader.dataset).__qualname__
            raise UserError(
                f"{dataset.path} cannot be read with {recipe}, whose dataset is {found}: choose another recipe"
            )
        draft.tree.trainer.run_validation = False
        return finish(draft, overrides)

    def leave_parent_out(self) -> list[str]:
        return leave_parent_out(self.args)

    def repeat(self) -> list[str]:
        args = self.args
        _, words, _ = run_source.draft_run(args)
        if args.base:
            return ["--base", *args.base, "--", *words]
        if args.module:
            return ["--module", args.module, "--config", args.config, "--", *words]
        if args.spec:
            spec_words = args.spec_words or []
            return ["--spec", args.spec, *spec_words, "--", *words[len(spec_words) :]]
        return [args.source or args.sft_toml, "--", *words]
