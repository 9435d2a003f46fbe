"""Rules of the data: clips with their frames, sizes and rates, datasets, the VAE and the text encoder."""

from __future__ import annotations

import os
import re

from worldsmith.data.clips.clip_records import ClipRecord, find_file, line_records
from worldsmith.data.stream.errors import DataError
from worldsmith.dialects.sat.keys import ARGS, DATA, NETWORK, TEXT, VAE
from worldsmith.dialects.sat.model import NET
from worldsmith.dialects.sat.targets import FOLDER
from worldsmith.dialects.translation import SpecTranslation, computed
from worldsmith.files.remote import is_remote

DATASET = "dataloader_train.dataset."
SIZE, FRAMES = f"{DATA}params.video_size", f"{DATA}params.max_num_frames"
RATE, SKIPPED = f"{DATA}params.fps", f"{DATA}params.skip_frms_num"
HUB = re.compile(r"[\w.-]+/[\w.-]+")


@computed(f"{DATA}target", SIZE, f"{DATA}params.image_size", FRAMES, f"{DATA}params.num_frames", RATE, SKIPPED)
def clips(t: SpecTranslation) -> None:
    """Sets the training dataset in `t` from SAT's dataset class, clip size and number of frames."""
    folder = t.get(f"{DATA}target") == FOLDER
    size, frames = (SIZE, FRAMES) if folder else (f"{DATA}params.image_size", f"{DATA}params.num_frames")
    for mine, other in ((SIZE, f"{DATA}params.image_size"), (FRAMES, f"{DATA}params.num_frames")):
        wrong = other if folder else mine
        if t.is_stated(wrong):
            t.refuse(wrong, f"{t.get(f'{DATA}target')} has no such setting", f"~{wrong}")
        else:
            t.report(wrong, "unneeded", "it belongs to the other dataset type")
    t.report(
        f"{DATA}target",
        "renamed",
        "dataloader_train.dataset: clips with captions, listed by `worldsmith dataset import`",
    )
    for key in (size, frames):
        if t.get(key) is None:
            t.refuse(key, "the value is missing", f"{key}=VALUE")
            return
    put_size(t, size)
    count = t.get(frames)
    if (count - 1) % t.get(f"{NETWORK}time_compressed_rate"):
        t.refuse(
            frames,
            f"expected 1 + a multiple of {t.get(f'{NETWORK}time_compressed_rate')} frames (of the VAE), found {count}",
            f"{frames}=49",
        )
        return
    t.move(frames, f"{DATASET}num_video_frames", "renamed")
    t.put(f"{DATASET}min_frames", count, source=frames)
    put_rate(t, folder)


def put_rate(t: SpecTranslation, folder: bool) -> None:
    """Sets the frame sampling of clips in `t`; SAT's two dataset classes have different rules.

    `folder`: whether the class is SAT's SFTDataset, which reads a folder, and not VideoDataset.
    """
    rate, skipped = t.get(RATE), t.get(SKIPPED)
    t.put(f"{DATASET}target_fps", float(rate), source=RATE)
    t.put(f"{DATASET}temporal_interval_mode", "sat" if folder else "target_fps", source=f"{DATA}target")
    if folder:
        why = "the frame interval is an integer rounded down, as in SAT, so the rate may be higher (30 fps become 10)"
        t.report(RATE, "renamed", f"{DATASET}target_fps = {rate:g}, temporal_interval_mode = sat: {why}")
    else:
        t.put(f"{DATASET}frame_selection_mode", "random", source=f"{DATA}target")
        t.report(
            RATE,
            "renamed",
            f"{DATASET}target_fps = {rate:g}, temporal_interval_mode = target_fps; the first frame is random",
        )
    short = (
        ("; SAT repeats the last frame of a short clip; here fewer frames are cut off at its ends, or it is skipped")
        if folder
        else ""
    )
    t.assign(SKIPPED, f"{DATASET}skip_frames", int(skipped), short, outcome="approximated" if short else "renamed")


def put_size(t: SpecTranslation, key: str) -> None:
    """Sets the resolution in `t` from [height, width] at `key`; adds a problem if it is not valid for the network."""
    size = t.get(key)
    if len(size) != 2:
        t.refuse(key, f"expected [height, width], found {size}", f"{key}=[480,720]")
        return
    wanted = [t.get(f"{NETWORK}latent_{side}") * 8 for side in ("height", "width")]
    sliced = isinstance(t.get(f"{NETWORK}patch_size"), list)
    if any(side % 16 for side in size):
        t.refuse(
            key,
            f"height and width must be multiples of 16, found {size}",
            f"{key}={[side // 16 * 16 for side in size]}",
        )
    elif not sliced and size != wanted:
        t.refuse(
            key, f"latents of {wanted[0] // 8} x {wanted[1] // 8} require {wanted}, found {size}", f"{key}={wanted}"
        )
    else:
        height, width = size
        t.put(f"{DATASET}resolution", f"{width}x{height}", source=key)
        t.report(key, "renamed", f"{DATASET}resolution = '{width}x{height}'")


@computed(f"{NETWORK}num_frames")
def model_frames(t: SpecTranslation) -> None:
    """Sets the number of frames that the model was trained with in `t`; warns if clips have another number."""
    key, frames = f"{NETWORK}num_frames", t.get(f"{NETWORK}num_frames")
    count = t.get(FRAMES) or t.get(f"{DATA}params.num_frames")
    differs = count not in (None, frames)
    note = f"; clips have {count} frames, but the model was trained with {frames}" if differs else ""
    t.assign(key, f"{NET}sample_frames", frames, note, warn=bool(note))


@computed(f"{ARGS}train_data", f"{ARGS}train_data_weights")
def train_data(t: SpecTranslation) -> None:
    """Sets the path of the training dataset in `t`.

    Adds a problem if the SAT config names several datasets, if the path does not exist, or if it is a folder in SAT's
    layout (`videos/` and `labels/`).
    """
    key, folders = f"{ARGS}train_data", t.get(f"{ARGS}train_data")
    if len(folders) != 1:
        t.refuse(key, f"a run reads one dataset, found {len(folders)}", "combine them with `worldsmith dataset`")
        return
    if is_missing(folders[0]):
        t.refuse(key, f"'{folders[0]}' does not exist", f"{key}=[PATH]")
        return
    if os.path.isdir(os.path.join(folders[0], "labels")):
        why = f"'{folders[0]}' has the folder layout of SAT, with videos/ and labels/, which a run cannot read"
        t.refuse(key, why, f"worldsmith dataset import {folders[0]} -o DIR, and {key}=[DIR]")
        return
    t.put(f"{DATASET}path", folders[0], source=key)
    t.report(key, "renamed", f"{DATASET}path = {folders[0]}")
    weights = t.get(f"{ARGS}train_data_weights")
    if weights not in (None, [1], [1.0]):
        t.refuse(f"{ARGS}train_data_weights", "only one dataset is used", f"~{ARGS}train_data_weights")
    else:
        t.report(f"{ARGS}train_data_weights", "unneeded", "only one dataset is used")


@computed(f"{ARGS}valid_data", f"{ARGS}split", f"{ARGS}eval_interval")
def valid_data(t: SpecTranslation) -> None:
    """Sets the path of the validation dataset and the validation interval in `t`."""
    key, every, folders = f"{ARGS}valid_data", f"{ARGS}eval_interval", t.get(f"{ARGS}valid_data")
    t.put("trainer.run_validation", bool(folders and t.get(every)), source=key)
    if folders and len(folders) != 1:
        t.refuse(key, f"a run reads one dataset, found {len(folders)}", f"{key}=[PATH]")
    elif folders:
        t.put("dataloader_val.dataset.path", folders[0], source=key)
        t.report(key, "renamed", f"dataloader_val.dataset.path = {folders[0]}")
        t.report(f"{ARGS}split", "unneeded", "valid_data sets the held-out data")
    else:
        t.report(key, "unneeded", "the run does not validate")
        held_out = [part.strip() for part in re.split("[,/]", t.get(f"{ARGS}split"))][1:]
        if t.is_stated(f"{ARGS}split") and any(part not in ("0", "0.0") for part in held_out):
            t.refuse(f"{ARGS}split", "no training data is held out", f"{ARGS}split=1,0,0, and {key}=[PATH]")
        else:
            t.report(
                f"{ARGS}split", "approximated" if not t.is_stated(f"{ARGS}split") else "kept", "no data is held out"
            )
    t.move(every, "trainer.validation_iter", "renamed")


@computed(f"{VAE}params.ckpt_path", f"{TEXT}params.model_dir")
def encoders(t: SpecTranslation) -> None:
    """Sets the paths of the VAE and the text encoder in `t`; adds a problem for paths that do not exist."""
    key, path = f"{VAE}params.ckpt_path", t.get(f"{VAE}params.ckpt_path")
    if not path:
        t.refuse(key, "the value is missing", f"{key}=PATH")
    else:
        move_path(t, key, "model.config.tokenizer.vae_path", "zai-org/CogVideoX-2b, or a diffusers folder with vae/")
    text_path = "google/t5-v1_1-xxl, or a folder with the encoder"
    move_path(t, f"{TEXT}params.model_dir", "model.config.text_encoder.path", text_path)


def move_path(t: SpecTranslation, key: str, to: str, expected: str = "PATH") -> None:
    """Sets a setting from a key whose value must be an existing path or a hub repository.

    Args:
        t: The translation, modified in place.
        key: Key of the SAT config.
        to: Dotted path of the setting.
        expected: Possible values, shown in the suggestion if the path does not exist.
    """
    if is_missing(t.get(key)):
        t.refuse(key, f"'{t.get(key)}' does not exist", f"{key}={expected}")
    else:
        t.move(key, to, "renamed")


def is_missing(path: str) -> bool:
    """Returns whether `path` is not an existing path, an address, or formed like the name of a hub repository."""
    return not is_remote(path) and not os.path.exists(path) and not (HUB.fullmatch(path) and not path.startswith("."))


def count_clips(path: str) -> int:
    """Returns the number of clips (clip windows of usable records) in a dataset.

    `path`: folder or record list of the dataset. The result is 0 if the list cannot be found or read.
    """
    try:
        records = line_records(find_file(path))
        return sum(len(record.facts["t2w_windows"]) for record in records if isinstance(record, ClipRecord))
    except DataError:
        return 0
