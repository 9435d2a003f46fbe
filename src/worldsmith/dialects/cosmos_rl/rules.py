"""Rules of keys that the specs of several actions share: the model, its adapter, and the video frames."""

from __future__ import annotations

import os
from typing import Any

from worldsmith.dialects.translation import KeyRule, SpecTranslation, computed
from worldsmith.files.remote import is_remote, join_address
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG, base_of_adapter, is_adapter_folder

PREFETCH = "hf_model://"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
RESIZED, PIXELS = ("resized_height", "resized_width"), ("min_pixels", "max_pixels", "total_pixels")
BOUNDS = ("min_frames", "max_frames")
LLAVA = "LlavaDataset"
"""Short name of the dataset class for LLaVA annotations."""


def normalize_model_name(text: str) -> str:
    """Returns a model's path or hub name without the prefix ``hf_model://``.

    Args:
        text: Folder, ``ORG/NAME`` or ``hf_model://ORG/NAME``.

    Raises:
        ValueError: If the name is empty, or the prefix is not followed by ``ORG/NAME``.
    """
    name = text.removeprefix(PREFETCH)
    if not name.strip() or (text != name and name.count("/") != 1):
        raise ValueError(f"expected a folder, ORG/NAME or {PREFETCH}ORG/NAME, found '{text}'")
    return name


def number_format(name: str) -> str:
    """Returns the dtype name of a spec unchanged. Raises ValueError for "float16", which is not supported."""
    if name == "float16":
        raise ValueError("current models overflow or lose accuracy in float16; use bfloat16 or float32")
    return name


def refuse_remote_output(t: SpecTranslation, *keys: str) -> bool:
    """Adds a problem for each key whose result folder is on an object store.

    Args:
        t: The translation, modified in place.
        keys: Keys of the spec whose values are folders or None.

    Returns:
        Whether there is such a key.
    """
    found = [key for key in keys if "://" in (t.get(key) or "").removeprefix("file://")]
    for key in found:
        t.refuse(
            key, f"expected a folder on this machine, found '{t.get(key)}'", f"{key}=FOLDER, and copy it afterwards"
        )
    return bool(found)


def move_unless_empty(t: SpecTranslation, key: str, to: str, otherwise: str) -> None:
    """Sets a setting from a spec key; if the key's value is empty, the key is only reported.

    Args:
        t: The translation, modified in place.
        key: Key of the spec.
        to: Dotted path of the setting.
        otherwise: Text of the report line if the value is empty.
    """
    if t.get(key):
        t.move(key, to, "renamed")
    else:
        t.report(key, "unneeded", otherwise)


def model_rule(model: str) -> KeyRule:
    """Returns the rule that sets the model or adapter from a model key and its neighbors.

    The neighbors are `enable_lora` and `base_model_path` in the same section.

    Args:
        model: Dotted key of the model's path or hub name.
    """
    section = model[: model.rfind(".") + 1]
    lora, base = f"{section}enable_lora", f"{section}base_model_path"
    return computed(model, lora, base)(lambda t: put_model(t, model, lora, base))


def put_model(t: SpecTranslation, model: str, lora: str, base: str) -> None:
    """Sets the model or, if the spec enables LoRA, an adapter and its base model.

    Args:
        t: The translation, modified in place.
        model: Key of the path or hub name of the model or adapter.
        lora: Key that is true for an adapter.
        base: Key of the adapter's base model.
    """
    name, named = t.get(model), t.get(base)
    if not t.get(lora):
        if is_adapter_folder(name):
            t.refuse(model, f"{name} is an adapter, and {lora} is false", f"set {lora} = true")
            return
        t.move(model, "model", "renamed", convert=normalize_model_name)
        t.report(lora, "kept", "no adapter")
        t.report(base, "unneeded", "only an adapter has a base model" if named else "no adapter")
        return
    found = named or base_of_adapter(name)
    if not found:
        config = join_address(name, ADAPTER_CONFIG)
        what = "is not read before the start" if is_remote(name.removeprefix(PREFETCH)) else "does not exist"
        why = f"{config} names no base model" if os.path.isfile(config) else f"no base model: the file {config} {what}"
        t.refuse(base, why, f"set {base} to the model that was fine-tuned")
        return
    t.move(model, "adapter", "renamed", convert=normalize_model_name)
    t.report(lora, "kept", "the adapter is merged with its base")
    try:
        t.put("model", normalize_model_name(found), source=base)
    except ValueError as error:
        t.refuse(base, str(error))
        return
    t.report(base, "renamed", f"model = {found}{'' if named else f', as stated in {ADAPTER_CONFIG}'}")


def put_frames(t: SpecTranslation, section: str, *, count: str, default: int | None = None) -> None:
    """Sets the frame sampling of videos in `processor.media`.

    Args:
        t: The translation, modified in place.
        section: Prefix of the keys; it is empty or ends in a dot.
        count: Name of the key for a fixed number of frames.
        default: Number of frames if neither that key nor `fps` is set; None: no setting.
    """
    fps, frames = f"{section}fps", f"{section}{count}"
    if t.get(frames) is not None:
        if t.get(fps) is not None and t.is_stated(fps):
            t.refuse(
                fps, f"{fps} and {frames} both set the number of frames", f"delete one, or add ~{fps} or ~{frames}"
            )
            return
        t.move(frames, "processor.media.nframes", "renamed")
        t.report(fps, "unneeded", f"{frames} sets the number of frames")
    elif t.get(fps) is not None:
        t.move(fps, "processor.media.fps", "renamed")
        t.report(frames, "unneeded", f"{fps} sets the number of frames")
    elif default is not None:
        t.assign(frames, "processor.media.nframes", default, ", the default of the spec")
        t.report(fps, "unneeded", f"{frames} sets the number of frames")


def put_total_pixels(t: SpecTranslation, section: str) -> None:
    """Sets the max pixels of a video in `t` to twice the spec's number, because specs count two frames as one.

    Args:
        t: The translation, modified in place.
        section: Prefix of the key `total_pixels`; it is empty or ends in a dot.
    """
    key, pixels = f"{section}total_pixels", t.get(f"{section}total_pixels")
    if pixels is None:
        t.report(key, "unneeded", "as in the model folder")
        return
    note = ": the spec counts two frames as one, here every frame counts"
    t.assign(key, "processor.media.total_pixels", 2 * pixels, note)


def drop_overridden(t: SpecTranslation, section: str, given: dict[str, Any], *, by_fps: bool) -> None:
    """Removes video settings from `given` that other settings in it make ineffective.

    A fixed size (height and width) replaces the pixel limits, and a fixed number of frames replaces the frame limits.
    Adds a problem for a height without a width or vice versa.

    Args:
        t: The translation, to which problems and report lines are added.
        section: Prefix of the keys; it ends in a dot.
        given: The spec's video settings by name, modified in place.
        by_fps: Whether frames are sampled at a frame rate; False: a fixed number of frames.
    """
    size = [name for name in RESIZED if name in given]
    for name in size if len(size) == 1 else ():
        del given[name]
        other = next(key for key in RESIZED if key != name)
        t.refuse(f"{section}{name}", f"a size needs {other} too", f"{section}{other}=PIXELS, or ~{section}{name}")
    overruled = [(name, f"{' and '.join(RESIZED)} replace it") for name in PIXELS if len(size) == 2]
    overruled += [
        (name, "it limits the number of frames only if fps is set, but the number of frames is fixed")
        for name in BOUNDS
        if not by_fps
    ]
    for name, why in overruled:
        if given.pop(name, None) is not None and t.is_stated(f"{section}{name}"):
            t.report(f"{section}{name}", "dead", why)
