"""`worldsmith schema`: JSON Schemas of recipe TOML, configs and specs, and the reference page of all config keys."""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

from worldsmith.actions.registry import command_classes
from worldsmith.config.declare.class_tags import tag_of
from worldsmith.config.declare.configurable import OPAQUE, Config, Configurable, find
from worldsmith.config.declare.field_docs import field_docs
from worldsmith.config.declare.ranges import annotated_hints
from worldsmith.config.declare.value_types import describe_hint, holds_sections, union_members
from worldsmith.config.errors import UserError
from worldsmith.config.recipes.registry import get_recipe, recipe_names
from worldsmith.config.toml.toml_schema import REFUSED, remap, toml_fields
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import MISSING, class_defaults, required_fields
from worldsmith.config.tree.read_config import untagged_class
from worldsmith.config.write.describe_toml import field_type_hint, keys_in_config, toml_schema
from worldsmith.config.write.json_schema import describe_class, has_sections, loadable_classes, tree_schema
from worldsmith.config.write.values import SHOWN, write
from worldsmith.dialects.cosmos_rl.spec_formats import COMMANDS, MODULES, form_of
from worldsmith.dialects.translation import SpecForm

HELP = "Print a JSON Schema (recipe TOML, config, spec of an action), the reference page or the table of metrics."
DESCRIBED = ("toml", "tree", "reference", "metrics")
_TUNE = "tune"
SPEC_ACTIONS = (*MODULES, *COMMANDS, _TUNE)
"""Actions whose specs have a schema and a template."""
_HEAD = """# Configuration reference

<!-- Generated: `worldsmith schema reference -o docs/config_reference.md`. A test compares it with the code. -->

A run is described by one typed config. A recipe TOML, a YAML file, a Python recipe, flags and overrides set its values.
This page lists the keys of the recipe TOML, then every section of the config. Editors read the same from
[`schema/recipe.schema.json`](schema/recipe.schema.json) and [`schema/tree.schema.json`](schema/tree.schema.json);
`worldsmith config new FILE --from RECIPE` writes a commented file with the values of one recipe.

"""
_TOML = """## The recipe TOML

`[job].experiment` names a registered recipe. A key that the file omits, or sets to `"???"`, keeps the recipe's
value; the default below applies without a recipe. Any value may be a reference: `"${trainer.max_iter}"`,
`"${oc.env:NAME}"`, `"${oc.env:NAME,default}"`, `"${now:%Y-%m-%d}"`. The last columns show the path that a key sets in
the config of a generator (`task = "vfm"`) and of a reasoner (`task = "vlm"`); a key without effect is reported.

"""
_TREE = """## The config

Paths of overrides (`worldsmith train FILE -- optimizer.lr=1e-4`) and flags (`--optimizer.lr 1e-4`), and keys of YAML
and JSON files. Where several classes are possible, `type` names the class.

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith schema` to a parser."""
    parser.add_argument("what", nargs="?", choices=(*DESCRIBED, *SPEC_ACTIONS), help="what to describe")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="with tree: recipe that provides the defaults")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of printing; with --all a folder")
    parser.add_argument(
        "--all", action="store_true", help="write the schema and the template of every action, and a manifest"
    )
    parser.add_argument(
        "--style",
        choices=("json-schema", "tao"),
        default="json-schema",
        help="spec of an action: JSON Schema, or the key names of NVIDIA TAO",
    )


def run(args: argparse.Namespace) -> int:
    """Prints or writes the requested text; returns the exit code. Raises UserError or ConfigError."""
    if args.recipe and args.what != "tree":
        raise UserError(f"a recipe can be used with `worldsmith schema tree`, not with `{args.what or '--all'}`")
    if args.all != (args.what is None):
        raise UserError("name a schema, or use --all with a folder: worldsmith schema --all -o DIR")
    if args.style != "json-schema" and args.what in DESCRIBED:
        raise UserError(f"--style requires the spec of an action, not `{args.what}`")
    if args.all:
        return write_all(args.output, args.style)
    text = schema_text(args.what, args.recipe, style=args.style)
    if args.output:
        pathlib.Path(args.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def write_all(folder: str | None, style: str) -> int:
    """Writes the schemas and templates of all spec formats, and a manifest, to a folder.

    Args:
        folder: Output folder; None raises UserError.
        style: Schema format: "json-schema" or "tao".

    Returns:
        Exit code: 1 if some files could not be generated (older versions of them are deleted), else 0.
    """
    from worldsmith.dialects.cosmos_rl.write.spec_folder import spec_files
    from worldsmith.files.atomic import write_text

    if folder is None:
        raise UserError("--all writes several files: name a folder with -o DIR")
    forms = all_forms()
    files = spec_files(forms, style)
    for name, text in files.items():
        path = pathlib.Path(folder) / name
        if text is None:
            path.unlink(missing_ok=True)
            print(f"{path} could not be generated; the manifest states why", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    written = sum(text is not None for text in files.values())
    print(f"{folder}: wrote {written} files for the actions {', '.join(forms)}")
    return int(None in files.values())


def schema_text(what: str, recipe: str | None = None, *, style: str = "json-schema") -> str:
    """Returns the text that `worldsmith schema` prints: a schema, the reference page or the table of metrics.

    Args:
        what: "toml", "tree" (the config), "reference" or "metrics", or the name of an action for the schema of
            its spec.
        recipe: For "tree": the recipe whose values are the defaults; None: all recipes.
        style: Schema format of a spec: "json-schema" or "tao".
    """
    from worldsmith.dialects.cosmos_rl.write.spec_folder import STYLES, as_text

    if what not in DESCRIBED:
        return as_text(STYLES[style](find_form(what)))
    if what == "metrics":
        from worldsmith.evaluation.metrics.registry import metrics_table

        return "".join(f"{row}\n" for row in metrics_table())
    trees = {name: get_recipe(name) for name in ([recipe] if recipe else recipe_names())}
    if what == "reference":
        return "\n".join([_HEAD, *_toml_part(trees), *_TreePart(trees).lines])
    if what == "toml":
        return as_text(toml_schema(trees))
    return as_text(tree_schema(trees))


def find_form(name: str) -> SpecForm:
    """Returns the spec format (keys, types, docstrings) of an action; raises KeyError for an action without specs."""
    if name != _TUNE:
        return form_of(name)
    (action,) = command_classes(_TUNE).values()
    return SpecForm(_TUNE, action.Config, ())


def all_forms() -> Mapping[str, Callable[[], SpecForm]]:
    """Returns the spec formats of all actions, by name; each value is a function that builds the format."""
    return {name: functools.partial(find_form, name) for name in SPEC_ACTIONS if name not in COMMANDS}


def _toml_part(trees: Mapping[str, Config]) -> list[str]:
    lines, section = [_TOML], None
    # The type of a key is that of the config field that it sets, which is narrower; without a field, that of the key.
    latest = reversed(list(trees.values()))
    types = {entry.path: field_type_hint(tree, at) for tree in latest for entry, at in keys_in_config(tree)}
    for entry in toml_fields():
        if entry.path == (OPAQUE,):
            continue
        if entry.path[:-1] != section:
            section = entry.path[:-1]
            lines += ["", f"### `[{'.'.join(section)}]`", ""]
            lines += _rows(["key", "type", "default", "description", "generator", "reasoner"])
        targets = [remap(entry.path, task) for task in ("vfm", "vlm")]
        landing = [f"`{format_path(target)}`" if target else "no effect" for target in targets]
        landing[1] = "same" if landing[0] == landing[1] else landing[1]
        default = "" if entry.default in (None, MISSING) else f"`{write(entry.default, SHOWN)}`"
        kind = describe_hint(types.get(entry.path, entry.type), null=False)
        lines.append(_row([f"`{entry.path[-1]}`", kind, default, entry.doc, *landing]))
    lines += [
        "",
        "### `[custom]`",
        "",
        "The project's own data: any keys, stored with the run and not interpreted.",
    ]
    if REFUSED:
        lines += ["", "Known keys that are not supported:", ""]
        lines += [f"- `{format_path(path)}`: {reason}" for path, reason in REFUSED.items()]
    return [*lines, ""]


class _TreePart:
    """Writes the part of the reference page about the config sections: each class once, in the order of the config.

    Args:
        trees: Unresolved config by name of the recipe.
    """

    def __init__(self, trees: Mapping[str, Config]) -> None:
        self.lines = [_TREE]
        self.seen: set[type] = set()
        self.trees = trees
        for root in dict.fromkeys(type(tree) for tree in trees.values()):
            self.section((), root, root)

    def section(self, path: tuple[str, ...], cls: type[Config], hint: Any) -> None:
        """Adds a section with its fields and the sections below it to the page, unless its class is described already.

        Args:
            path: Path of the section in the config.
            cls: Class of the section.
            hint: Type of the field that contains the section.
        """
        if cls in self.seen:
            return
        self.seen.add(cls)
        where = f"`{'.'.join(path)}`: " if path else ""
        facts = describe_class(cls)
        self.lines += ["", f"### {where}{facts['title']}", ""]
        if "description" in facts:
            self.lines += [" ".join(str(facts["description"]).split()), ""]
        if cls is not untagged_class(union_members(hint)) or not path:
            self.lines += [f"`type: {tag_of(cls)}`", ""]
        self.fields(cls)
        for name, kind in annotated_hints(cls).items():
            self.child_sections((*path, name), kind)

    def fields(self, cls: type[Config]) -> None:
        """Adds the Markdown table of a class's fields to the page."""
        docs, defaults, required = field_docs(cls), class_defaults(cls), required_fields(cls)
        hints = annotated_hints(cls)
        if not hints:
            self.lines.append("No fields.")
            return
        self.lines += _rows(["field", "type", "default", "description"])
        for name, hint in hints.items():
            if has_sections(hint):
                kind, default = _section_words(hint), "required" if name in required else ""
            else:
                kind = describe_hint(hint)
                default = "required" if name in required else f"`{write(defaults[name], SHOWN)}`"
            self.lines.append(_row([f"`{name}`", kind, default, docs.get(name, "")]))

    def child_sections(self, path: tuple[str, ...], hint: Any) -> None:
        """Adds all sections that a field at `path` of type `hint` can contain to the page."""
        for member in union_members(hint):
            if get_origin(member) in (list, dict):
                key = "NAME" if get_origin(member) is dict else "0"
                self.child_sections((*path, key), get_args(member)[-1])
        for cls in self.classes_at(path) if Configurable.Config in union_members(hint) else loadable_classes(hint):
            self.section(path, cls, hint)

    def classes_at(self, path: Path) -> Iterable[type[Config]]:
        """Returns the section classes that the configs of the recipes have at `path`.

        It is used for a field whose type allows any component.
        """
        found = (find(tree, path) for tree in self.trees.values())
        return dict.fromkeys(type(node) for node in found if isinstance(node, Config))


def _section_words(hint: Any) -> str:
    inner = [
        _section_words(get_args(member)[-1]) for member in union_members(hint) if get_origin(member) in (list, dict)
    ]
    container = "list" if holds_sections(hint) else "table"
    return f"{container} of {inner[0]}s" if inner else "section"


def _rows(titles: list[str]) -> list[str]:
    return [_row(titles), f"|{'---|' * len(titles)}"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"
