"""Data files, frames, validation, and names of a training spec."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from worldsmith.config.specs.form import computed
from worldsmith.config.specs.translation import Translation, shown

TRAIN, OLD, VAL = "custom.train_dataset", "custom.dataset", "custom.val_dataset"
PROMPTS = ("custom.system_prompt", "train.train_policy.system_prompt")
VISION = "custom.vision"
FALLBACK = {"fps": 1.0, "max_pixels": 81_920}
"""Settings of videos of the data script of TAO and Cosmos-Reason1."""
LOADERS = ("dataloader_train", "dataloader_val")


@computed(TRAIN, OLD, VAL, *PROMPTS, "validation.enable", "validation.val_before_train", "validation.batch_size")
def data_sets(t: Translation) -> None:
    key = TRAIN if t.get(TRAIN) is not None or t.get(OLD) is None else OLD
    if t.get(TRAIN) is not None and t.get(OLD) is not None:
        t.refuse(OLD, f"{TRAIN} is given too", f"~{OLD}")
    if not t.get(f"{key}.annotation_path"):
        hub = t.get("train.train_policy.dataset.name")
        why = f"no data: '{hub}' of the hub needs code of its own" if hub and t.get(key) is None else "no data is named"
        t.refuse(f"{TRAIN}.annotation_path", why, f"{TRAIN}.annotation_path=FILE {TRAIN}.media_path=FOLDER")
    else:
        put_files(t, key, "dataloader_train")
    put_validation(t)


def put_files(t: Translation, key: str, loader: str) -> None:
    files = {name: t.get(f"{key}.{name}") for name in ("annotation_path", "media_path", "media_root")}
    for name, value in files.items():
        if "://" in value and not value.startswith("file://"):
            t.refuse(f"{key}.{name}", f"'{value}' is not on this machine", "copy it here and give its path")
            return
        if value.endswith((".tar", ".tar.gz", ".tgz", ".zip")):
            t.refuse(f"{key}.{name}", "an archive is not unpacked by a run", f"unpack it: {key}.{name}=FOLDER")
            return
    if files["media_path"] and files["media_root"] not in ("", files["media_path"]):
        t.refuse(f"{key}.media_root", "media_path says something else", f"~{key}.media_root or ~{key}.media_path")
        return
    to = f"{loader}.dataset"
    t.put(f"{to}.path", files["annotation_path"].removeprefix("file://"), source=f"{key}.annotation_path")
    t.put(f"{to}.video_fps", "require", source=f"{key}.annotation_path")
    rule = f"a video's record must have video_fps, or say -- {to}.video_fps=optional"
    t.say(f"{key}.annotation_path", "renamed", f"{to}.path = {shown(files['annotation_path'])}; {rule}")
    for name in ("media_path", "media_root"):
        if files[name]:
            t.put(f"{to}.media_root", files[name].removeprefix("file://"), source=f"{key}.{name}")
            t.say(f"{key}.{name}", "renamed", f"{to}.media_root = {shown(files[name])}")
        elif t.is_stated(f"{key}.{name}"):
            t.say(f"{key}.{name}", "unneeded", "the folder of the annotations")
    if t.is_stated(f"{key}.response_mode"):
        t.say(f"{key}.response_mode", "kept", "answers are what is learned here")
    put_prompt(t, key, to)


def put_prompt(t: Translation, key: str, to: str) -> None:
    """The first that is given: the data set's own, that of `custom`, that of the policy."""
    keys = (f"{key}.system_prompt", *PROMPTS)
    given = [name for name in keys if t.is_stated(name) and t.get(name) is not None]
    for number, name in enumerate(given):
        if number == 0:
            t.put(f"{to}.system_prompt", t.get(name), source=name)
            t.say(name, "renamed", f"{to}.system_prompt = {shown(t.get(name))}")
        elif t.get(name) != t.get(given[0]):
            t.refuse(name, f"{given[0]} gives another prompt", f"~{name} or ~{given[0]}")
        elif key != VAL:
            t.say(name, "kept", f"the same as {given[0]}")


def put_validation(t: Translation) -> None:
    enabled, key = t.get("validation.enable"), f"{VAL}.annotation_path"
    test_size = t.get("train.train_policy.dataset.test_size")
    t.put("trainer.run_validation", enabled, source="validation.enable")
    t.say("validation.enable", "renamed", f"trainer.run_validation = {shown(enabled)}")
    if not enabled:
        for name in (VAL, "validation.val_before_train", "validation.batch_size"):
            if t.is_stated(name):
                t.say(name, "unneeded", "validation.enable is false: nothing is measured")
        return
    if not t.get(key):
        held = f"; {shown(test_size)} of the training data would be held out" if test_size else ""
        why = f"there is no data to validate on{held}, which a run here does not do by itself"
        t.refuse("validation.enable", why, f"{key}=FILE, or validation.enable=false")
        return
    put_files(t, VAL, "dataloader_val")
    t.move("validation.val_before_train", "trainer.run_validation_on_start", "renamed")
    size, source = t.get("validation.batch_size"), "validation.batch_size"
    if size is None:
        size, source = t.get("train.train_policy.mini_batch"), "train.train_policy.mini_batch"
    t.put("dataloader_val.max_samples_per_batch", size, source=source)
    t.put("dataloader_val.max_sequence_length", size * t.get("policy.model_max_length") + 1, source=source)
    t.say("validation.batch_size", "renamed", f"dataloader_val.max_samples_per_batch = {size}")


@computed("policy.model_max_length")
def longest(t: Translation) -> None:
    """Our cap is that of a pack, below which its tokens must stay."""
    longest, mini = t.get("policy.model_max_length"), t.get("train.train_policy.mini_batch")
    to = "dataloader_train.max_sequence_length"
    t.put(to, mini * longest + 1, source="policy.model_max_length")
    if mini == 1:
        t.say("policy.model_max_length", "renamed", f"{to} = {longest + 1}, which no sample may reach; none is cut")
        return
    text = f"{to} = {mini * longest + 1}, for {mini} samples together; a longer one is left out, never cut"
    t.say("policy.model_max_length", "approximated", text)


@computed(VISION)
def frames(t: Translation) -> None:
    given = {name: t.get(f"{VISION}.{name}") for name in FRAMES if t.get(f"{VISION}.{name}") is not None}
    for name, way_out in UNCUT.items():
        if t.get(f"{VISION}.{name}") is not None:
            t.refuse(f"{VISION}.{name}", "every video is shown whole, in its own proportions", way_out)
    if "fps" in given and "nframes" in given:
        why = "fps and nframes both say how many frames are taken"
        t.refuse(f"{VISION}.nframes", why, f"~{VISION}.nframes or ~{VISION}.fps")
        return
    put_frames(t, {"video_limits": "qwen_vl_utils"})
    script, default = default_frames(t)
    if not t.is_stated(VISION):
        put_frames(t, default)
        text = f"left out: {shown(default)}, as the data script of {script} has it"
        t.say(VISION, "approximated", text, loud=True)
    elif "total_pixels" in default and not given.keys() & {"total_pixels", "resized_height"}:
        put_frames(t, {"total_pixels": default["total_pixels"]})
        text = (
            f"left out: dataloader_train.processor.media.total_pixels = {default['total_pixels']}, as {script} has it"
        )
        t.say(f"{VISION}.total_pixels", "approximated", text)
    elif "total_pixels" in default and "total_pixels" in given:
        text = f"kept, where {script} replaces it by {default['total_pixels'] // 2} (0.9 x model_max_length x 1024)"
        t.say(VISION, "approximated", text, loud=True)
    for name in ("min_frames", "max_frames"):
        if "nframes" in given and name in given:
            del given[name]
            t.say(f"{VISION}.{name}", "dead", "it bounds what fps asks for; nframes takes its place")
    if "total_pixels" in given:
        given["total_pixels"] *= 2
    put_frames(t, given)
    for name, value in given.items():
        text = "; there two frames count once, here each" if name == "total_pixels" else ""
        t.say(f"{VISION}.{name}", "renamed", f"dataloader_train.processor.media.{name} = {shown(value)}{text}")


def default_frames(t: Translation) -> tuple[str, dict[str, Any]]:
    """The data script that belongs to a spec, and its settings of videos.

    That of Cosmos-Reason2 reads `custom.dataset` too and knows no limit of a frame, but one of a video: 0.9 x
    model_max_length tokens of 32 x 32 pixels in two frames.
    """
    name = t.get("policy.model_name_or_path") or ""
    if t.get(TRAIN) is None and is_reason2(name):
        return "Cosmos-Reason2", {"fps": 1.0, "total_pixels": 2 * int(t.get("policy.model_max_length") * 1024 * 0.9)}
    return "TAO and Cosmos-Reason1", FALLBACK


def is_reason2(name: str) -> bool:
    """Whether a model is a Cosmos-Reason2, or a Qwen3-VL, as far as its name or its folder tells."""
    with suppress(OSError, ValueError, AttributeError):
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        return str(config.get("model_type")).startswith("qwen3_vl")
    return re.search(r"reason-?2|qwen3-vl", name.rstrip("/").rpartition("/")[2].lower()) is not None


def put_frames(t: Translation, values: dict[str, Any]) -> None:
    for loader in LOADERS if t.get("validation.enable") else LOADERS[:1]:
        for name, value in values.items():
            t.put(f"{loader}.processor.media.{name}", value, source=f"{VISION}.{name}")


@computed(
    *(f"train.train_policy.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
    *(f"validation.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
)
def readers(t: Translation) -> None:
    for loader, above in zip(LOADERS, ("train.train_policy.", "validation.")):
        workers, ready = f"{above}dataloader_num_workers", f"{above}dataloader_prefetch_factor"
        t.move(workers, f"{loader}.num_workers", "renamed")
        if t.get(workers):
            t.move(ready, f"{loader}.prefetch_factor", "renamed")
        elif t.is_stated(ready):
            t.say(ready, "dead", f"{workers} is 0: nobody reads ahead")


FRAMES = ("fps", "nframes", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")
UNCUT = {
    "video_start": "cut the clips beforehand",
    "video_end": "cut the clips beforehand",
    "resized_height": f"{VISION}.max_pixels=HEIGHT*WIDTH",
    "resized_width": f"{VISION}.max_pixels=HEIGHT*WIDTH",
}
