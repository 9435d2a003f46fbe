"""`worldsmith config convert`: a run description in another form, which leads to the same tree."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from worldsmith.config.errors import Problem, UserError
from worldsmith.monitor.terminal_text import print_message, print_warning

FORMATS = ("toml", "yaml", "json", "python")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="recipe TOML, YAML or JSON tree, nested spec, run folder, recipe")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILE_OR_KEY=VALUE",
        help="further files of a YAML stack, and changes of it; changes of a nested spec, such as train.epoch=2",
    )
    parser.add_argument("--to", required=True, choices=FORMATS, help="the form to write")
    parser.add_argument("-o", "--output", metavar="FILE", help="write FILE instead of printing")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--name", help="python: the recipe's name; by default that of the source")
    parser.add_argument(
        "--overrides", metavar="FILE", help="toml: write what the TOML has no key for to FILE, as words for after --"
    )
    parser.add_argument(
        "--print-overrides", action="store_true", help="toml: print these words, quoted for a shell; needs -o"
    )


def run(args: argparse.Namespace) -> int:
    """Prints or writes the text. Raises UserError if it cannot say everything."""
    from worldsmith.config.load import read_draft
    from worldsmith.config.tree.draft import finish
    from worldsmith.config.tree.paths import format_path
    from worldsmith.config.words.overrides import parse_overrides
    from worldsmith.config.write.convert import convert, write_new
    from worldsmith.dialects.sat.recognise import is_change, is_sat_stack

    for option, needed in (("name", "python"), ("overrides", "toml"), ("print_overrides", "toml")):
        if getattr(args, option) and args.to != needed:
            raise UserError(f"--{option.replace('_', '-')} goes with --to {needed}")
    if args.print_overrides and not args.output:
        raise UserError("--print-overrides prints words in place of the file; name the file with -o FILE")
    said = [args.source, *args.words]
    files, changes = [w for w in said if not is_change(w)], [w for w in said if is_change(w)]
    if is_sat_stack(files):
        draft, overrides = read_draft(files, (), changes)
    elif len(files) > 1:
        problems: list[Problem] = []
        draft, overrides = read_draft(files, parse_overrides(changes, problems))
        draft.problems += problems
    else:
        draft, overrides = read_draft(args.source, (), args.words or None)
    print_message(draft.report.rstrip("\n")) if draft.report else None
    loaded = finish(draft, overrides, keep_unset=True)
    for warning in () if loaded.report else loaded.warnings:
        print_warning(warning)
    converted = convert(loaded, args.to, name=args.name)
    rest = "".join(f"{shlex.quote(word)}\n" for word in converted.words)
    if converted.rest and not (args.overrides or args.print_overrides):
        paths = "\n".join(f"  {format_path(change.path)}" for change in converted.rest)
        output = ["-o", str(Path(args.output).with_suffix(".yaml"))] if args.output else []
        command = shlex.join(["worldsmith", "config", "convert", *said, "--to", "yaml", *output])
        raise UserError(
            f"the recipe TOML has no key for\n{paths}\n"
            f"YAML holds the whole run: {command}\n"
            "or write these as override words beside the TOML, with --overrides FILE or --print-overrides"
        )
    if args.overrides:
        write_new(args.overrides, rest, args.force)
    if args.output:
        write_new(args.output, converted.text, args.force)
        print(rest if args.print_overrides else "", end="")
    else:
        print(converted.text, end="")
    return 0
