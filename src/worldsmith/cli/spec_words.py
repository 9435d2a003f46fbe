"""`--spec`: another system's spec in the place of a settings file, changed by dotted words."""

from __future__ import annotations

import re

from worldsmith.cli.parent_words import PARENT
from worldsmith.config.errors import UserError
from worldsmith.config.words.command_words import Words
from worldsmith.dialects.cosmos_rl.forms import COMMANDS, MODULES, form_of
from worldsmith.dialects.cosmos_rl.policy import KEY as POLICY
from worldsmith.dialects.cosmos_rl.policy import route, take_policy
from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.translation import PARENT_KEY, ReportLine, SpecForm, SpecTranslation, require_translated

SPEC = "--spec"
HELP = (
    "a spec of Cosmos-RL or TAO in place of a settings file; words such as evaluation.limit=10 and ~vision.fps change "
    "it, flags win over it"
)
MODEL_KEYS = {"evaluate": "model.model_name", "quantize": "model.model_path", "inference": "model_path"}
SAMPLING = {
    "fps": ("vision.fps", "fps"),
    "nframes": ("vision.nframes", "num_frames"),
    "total_pixels": ("vision.total_pixels", "total_pixels"),
}
_DOTTED = re.compile(r"\+?[A-Za-z_][\w.]*=.*|~[A-Za-z_][\w.]*", re.DOTALL)


def read_spec_words(name: str, words: Words, *, settings: str) -> None:
    """Reads the spec that ``--spec`` names and takes the dotted words out of the others.

    A parent, of the spec or of the command line, replaces the model that the file names. Raises UserError for a command
    without specs and for a word that names a model in addition to a parent, ConfigError for mistakes in the spec.
    """
    form_name = COMMANDS.get(name, name)
    if not reads_specs(name):
        known = ", ".join(command for command in (*MODULES, *COMMANDS) if command not in COMMANDS.values())
        raise UserError(f"worldsmith {name} reads no specs; these do: {known}")
    if settings in words.own:
        raise UserError(f"{SPEC} and {settings} are both files of settings; give one of them")
    form, file = form_of(form_name), words.own[SPEC]
    dotted = [word for word in words.loose if _DOTTED.fullmatch(word)]
    words.loose = [word for word in words.loose if word not in dotted]
    asked, (policy, dotted) = route(form_name, dotted), take_policy(dotted)
    spec = read_spec(form, file, dotted)
    key = MODEL_KEYS.get(form_name)
    parent = words.own.get(PARENT) or spec.outside.get(PARENT_KEY)
    if parent and key:
        for word in dotted:
            if key_of_word(form, word) == key:
                raise UserError(f"{word} and a parent, {parent}, both name the model; leave one of them out")
        named = spec.get(key) if spec.is_stated(key) else None
        section = key[: key.rfind(".") + 1]
        spec = read_spec(form, file, [*dotted, f"{key}={PARENT_KEY}", f"{section}enable_lora=false"])
        words.own[PARENT] = str(parent)
    words.spec = require_translated(spec)
    if policy is not None:
        text = f"{asked.said}: the policy belongs to train and tune"
        words.spec.lines.append(ReportLine(POLICY, "unneeded", text, stated=True, warn=True))
    if parent and key:
        leave_to_parent(words.spec)
        words.spec.lines = [line for line in words.spec.lines if line.key != key]
        instead = f", in place of {named}" if named else ""
        words.spec.report(
            key, "approximated" if named else "unneeded", f"the model is that of the parent, {parent}{instead}"
        )


def read_stack_words(words: Words, *, settings: str) -> None:
    """Reads a SAT stack as what `generate` is to make: the file that ``--spec`` names and those after it.

    Words without a flag that are no files change it, as in ``args.seed=7``. Raises UserError for other files, and
    ConfigError for mistakes.
    """
    from worldsmith.dialects.sat.recognise import is_change, is_sat_stack
    from worldsmith.dialects.sat.sampling import translate_sampling

    if settings in words.own:
        raise UserError(f"{SPEC} and {settings} are both files of settings; give one of them")
    files = [words.own[SPEC], *(word for word in words.loose if not is_change(word))]
    if not is_sat_stack(files):
        raise UserError(
            f"{SPEC} {' '.join(files)}: expected a stack of CogVideo's SAT, such as model.yaml inference.yaml"
        )
    changes = [word for word in words.loose if is_change(word)]
    words.loose = []
    words.spec, _ = translate_sampling(files, changes)


def reads_specs(name: str) -> bool:
    """Whether there are specs of a command."""
    return COMMANDS.get(name, name) in MODULES


def key_of_word(form: SpecForm, word: str) -> str:
    """The key that a word sets, by its own name; "" for a word that takes a key away."""
    key = word.removeprefix("+").partition("=")[0]
    key = key.removeprefix(f"{form.wrapper}.") if form.wrapper else key
    return form.aliases.get(key, key)


def leave_to_parent(t: SpecTranslation) -> None:
    """Takes away what a parent knows better: the model, and how pictures are shown as far as the spec is silent."""
    t.data.pop("model", None)
    media = t.data.get("processor", {}).get("media", {})
    for name, keys in SAMPLING.items():
        if not any(t.is_stated(key) for key in keys):
            media.pop(name, None)
            for key in set(keys) & {line.key for line in t.lines}:
                t.lines = [line for line in t.lines if line.key != key]
                t.report(key, "unneeded", "as the parent has it")
