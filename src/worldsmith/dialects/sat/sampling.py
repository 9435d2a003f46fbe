"""Translates a SAT stack that samples videos (a model file and one like inference.yaml) for `worldsmith generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsmith.config.errors import ConfigError
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.dialects.sat import RECIPE, model
from worldsmith.dialects.sat.data import encoders, is_missing, model_frames
from worldsmith.dialects.sat.keys import ARGS, KEYS, LOSS, MODEL, NETWORK, VAE
from worldsmith.dialects.sat.stack import read_stack
from worldsmith.dialects.translation import (
    KeyRule,
    SpecTranslation,
    computed,
    read_key_rules,
    translate,
    without_effect,
)

OURS = "generate."
"""Prefix of the settings of `worldsmith generate` in the translation of the run."""
COUNT, SIZE, RATE, IMAGES = (
    f"{ARGS}{name}" for name in ("sampling_num_frames", "sampling_image_size", "sampling_fps", "image2video")
)
TYPE, FILE, LOAD, BATCH = (f"{ARGS}{name}" for name in ("input_type", "input_file", "load", "batch_size"))
Z_CHANNELS = f"{VAE}params.encoder_config.params.z_channels"


@dataclass(frozen=True, slots=True)
class SatModel:
    """Model that SAT config files sample from: its run config and the path of its weights."""

    tree: Any
    """Run config that contains the model; references are not resolved."""
    weights: str


@computed(TYPE, FILE)
def prompts(t: SpecTranslation) -> None:
    """Sets the file of the prompts in `t` from SAT's `input_file`, if `input_type` is "txt".

    Warns for "cli", as interactive input is not supported; adds a problem for any other type.
    """
    kind, file = t.get(TYPE) or "cli", t.get(FILE)
    if kind == "txt":
        t.put(f"{OURS}input_files", [file or "input.txt"], source=FILE)
        note = "; images are looked up next to the file" if t.get(IMAGES) else ""
        t.report(
            FILE, "approximated" if note else "renamed", f"--input-files {file or 'input.txt'}{note}", warn=bool(note)
        )
        t.report(TYPE, "kept", "one prompt per line")
    elif kind == "cli":
        t.report(
            TYPE, "approximated", "there is no interactive input: use --prompt TEXT or --input-files FILE", warn=True
        )
        t.report(FILE, "unneeded", "input_type is cli")
    else:
        t.refuse(TYPE, f"expected txt or cli, found '{kind}'", f"{TYPE}=txt")


@computed(IMAGES, SIZE)
def sampled_size(t: SpecTranslation) -> None:
    """Sets height and width of the videos in `t`, in pixels; SAT uses the size of the image if there is one."""
    images, wanted = bool(t.get(IMAGES)), bool(t.get(f"{MODEL}noised_image_input"))
    if images != wanted:
        why = f"the model was trained {'with' if wanted else 'without'} image conditioning (noised_image_input)"
        more = f" ~{SIZE}, and lines such as prompt@@image.png" if wanted and t.is_stated(SIZE) else ""
        t.refuse(IMAGES, why, f"{IMAGES}={str(wanted).lower()}{more}")
        return
    t.report(IMAGES, "kept", "lines are prompt@@image" if images else "videos are generated from text")
    newer = isinstance(t.get(f"{NETWORK}patch_size"), list)
    made_for = [768, 1360] if newer else [8 * t.get(f"{NETWORK}latent_{side}") for side in ("height", "width")]
    sides = made_for if images else t.get(SIZE) or [768, 1360]
    fits = isinstance(sides, list) and len(sides) == 2 and all(type(n) is int and n > 0 and n % 16 == 0 for n in sides)
    if not fits:
        t.refuse(SIZE, f"expected [height, width], multiples of 16, found {sides}", f"{SIZE}={made_for}")
        return
    for name, side in zip(("height", "width"), sides):
        t.put(f"{OURS}{name}", side, source=SIZE)
    text = f"--height {sides[0]} --width {sides[1]}"
    if images:
        stated = "; sampling_image_size is ignored with images" if t.is_stated(SIZE) else ""
        text += f" of every video; in SAT, the shorter side has 768 pixels and the image's aspect ratio is kept{stated}"
        t.report(SIZE, "approximated", text, warn=True)
    else:
        t.report(SIZE, "renamed", text)


@computed(COUNT)
def sampled_frames(t: SpecTranslation) -> None:
    """Sets the number of video frames in `t` from SAT's number of latent frames.

    In CogVideoX 1.5 the first latent frame is not decoded.
    """
    newer = isinstance(t.get(f"{NETWORK}patch_size"), list)
    count = 32 if t.get(COUNT) is None else t.get(COUNT)
    found = t.get(f"{NETWORK}time_compressed_rate") * (count - 1 - newer) + 1 if type(count) is int else 0
    if found < 9 or found % 8 != 1:
        published = "22 or 42" if newer else "13, 11 or 9"
        t.refuse(
            COUNT,
            f"it is the number of latent frames: expected {published}, found {count}",
            f"{COUNT}={'22' if newer else '13'}",
        )
        return
    t.put(f"{OURS}num_frames", found, source=COUNT)
    t.report(COUNT, "renamed", f"--num-frames {found}, decoded from {count} latent frames")


@computed(LOAD, f"{ARGS}mode", f"{ARGS}force_inference")
def weights(t: SpecTranslation) -> None:
    """Sets the path of the weights in `t`; adds a problem for a missing path."""
    load = t.get(LOAD)
    if not load:
        t.refuse(LOAD, "no weights are set", f"{LOAD}=PATH of SAT's folder, or of a diffusers pipeline")
    elif is_missing(load):
        t.refuse(LOAD, f"'{load}' does not exist", f"{LOAD}=PATH")
    else:
        t.put("checkpoint.load_path", load, source=LOAD)
        t.report(LOAD, "renamed", f"the weights of the model: {load}")
    t.report(f"{ARGS}mode", "kept", "videos are generated")
    text = "all weights must exist; SAT ignored missing ones"
    t.report(f"{ARGS}force_inference", "approximated" if t.get(f"{ARGS}force_inference") else "kept", text)


@computed(f"{ARGS}bf16", f"{ARGS}fp16")
def sampled_precision(t: SpecTranslation) -> None:
    """Sets the precision of the model, VAE and text encoder in `t` from SAT's bf16 and fp16."""
    half = {f"{ARGS}bf16": "bfloat16", f"{ARGS}fp16": "float16"}
    chosen = [key for key in half if t.get(key)]
    if len(chosen) > 1:
        t.refuse(chosen[1], "bf16 and fp16 are both enabled", f"{chosen[1]}=false")
        return
    for part in ("", "tokenizer.", "text_encoder."):  # the VAE and the text encoder have it too, as there
        value = half[chosen[0]] if chosen else "float32"
        t.put(f"model.config.{part}precision", value, source=next(iter(chosen), f"{ARGS}bf16"))
    for key in half:
        t.report(
            key,
            "renamed" if key in chosen else "kept",
            f"model.config.precision = {half[key]}" if key in chosen else "off",
        )


@computed(BATCH, f"{ARGS}seed", RATE, f"{ARGS}output_dir", f"{ARGS}latent_channels", f"{ARGS}only_save_latents")
def outputs(t: SpecTranslation) -> None:
    """Sets number of outputs, seed, frame rate and output folder of `worldsmith generate` in `t`."""
    t.put(f"{OURS}num_outputs", t.get(BATCH), source=BATCH)
    t.report(BATCH, "renamed", f"--num-outputs {t.get(BATCH)}, per prompt", warn=not t.is_stated(BATCH))
    t.put(f"{OURS}seed", t.get(f"{ARGS}seed"), source=f"{ARGS}seed")
    t.report(f"{ARGS}seed", "approximated", f"--seed {t.get(f'{ARGS}seed')}; the random generator of the noise differs")
    rate = 8 if t.get(RATE) is None else t.get(RATE)
    if type(rate) not in (int, float) or rate <= 0:
        t.refuse(RATE, f"expected a frame rate (fps), found {rate}", f"{RATE}=16")
    else:
        t.put(f"{OURS}fps", float(rate), source=RATE)
        t.report(RATE, "renamed", f"--fps {rate:g}")
    folder = t.get(f"{ARGS}output_dir") or "samples"
    t.put(f"{OURS}out", folder, source=f"{ARGS}output_dir")
    t.report(
        f"{ARGS}output_dir",
        "approximated",
        f"--out {folder}; videos are NAME/vision.mp4; SAT writes INDEX_PROMPT/0/000000.mp4",
    )
    key, channels = f"{ARGS}latent_channels", t.get(Z_CHANNELS)
    if t.is_stated(key) and t.get(key) != channels:
        t.refuse(key, f"the VAE has {channels} channels, found {t.get(key)}", f"{key}={channels}")
    else:
        t.report(key, "kept", "the channels of the VAE")
    if t.get(f"{ARGS}only_save_latents"):
        t.refuse(
            f"{ARGS}only_save_latents", "latents are decoded, and videos are written", f"{ARGS}only_save_latents=false"
        )
    else:
        t.report(f"{ARGS}only_save_latents", "kept", "videos are written")


_READ: tuple[KeyRule, ...] = (
    *(rule for rule in model.RULES if not all(key.startswith(LOSS) for key in rule.keys)),
    *(prompts, sampled_size, sampled_frames, weights, sampled_precision, outputs, encoders, model_frames),
    *read_key_rules("sat", "sampling"),
)
_READ_KEYS = {key for rule in _READ for key in rule.keys}
RULES: tuple[KeyRule, ...] = (
    *_READ,
    *(without_effect(key, "unneeded", "only training reads it") for key in KEYS if key not in _READ_KEYS),
)


def translate_sampling(files: Sequence[str], words: Sequence[str] = ()) -> tuple[SpecTranslation, SatModel]:
    """Translates SAT config files for sampling to settings of `worldsmith generate`.

    Args:
        files: YAML files; later ones override earlier ones.
        words: Overrides of SAT's keys.

    Returns:
        The translation, whose `data` are settings of `worldsmith generate`, and the model.

    Raises:
        ConfigError: If a file cannot be read or has mistakes; the error lists all of them.
    """
    t = translate(read_stack(files, words, RULES, sections=("model", "args")))
    settings = t.data.pop(OURS.rstrip("."), {})
    tree: Any = t.apply_to(get_recipe(RECIPE), {})
    if t.problems:
        raise ConfigError(t.problems, where="the stack")
    t.spans = {path[1:]: span for path, span in t.spans.items() if path[0] == OURS.rstrip(".")}
    t.lines = [
        replace(line, warn=line.warn and line.key.startswith(ARGS)) for line in t.lines
    ]  # the others are about training
    t.data = {"model": ", ".join(files), "stack": [*files, *words], **settings}
    return t, SatModel(tree, tree.checkpoint.load_path)
