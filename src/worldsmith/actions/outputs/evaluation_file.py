"""What `worldsmith evaluate` writes of generated videos: figures of each model, and a contact sheet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import share_done
from worldsmith.actions.outputs.held_out import HeldOutLoss
from worldsmith.actions.outputs.sample_order import SHEET_SAMPLES
from worldsmith.config.errors import UserError
from worldsmith.evaluation.made_video import MadeVideo
from worldsmith.evaluation.measuring import (
    CLIP_SCORE,
    DISTANCE,
    LOSS,
    REAL,
    Measured,
    measure,
    measure_distances,
    measure_real,
    summarize,
    table,
)
from worldsmith.files.json_file import read_json_object

if TYPE_CHECKING:
    from worldsmith.evaluation.pretrained import ClipScorer, VideoFeatures

RESULT = "evaluation.json"


def measure_all(
    samples: Mapping[str, Sequence[MadeVideo]],
    losses: Mapping[str, HeldOutLoss],
    chosen: Collection[str],
    clip: ClipScorer | None,
    features: VideoFeatures | None,
) -> tuple[dict[str, Any], dict[str, Measured], Measured]:
    """All figures, what was measured of the samples of each model, and of the real videos."""
    measured = {}
    for name, of in samples.items():
        measured[name] = measure(of, chosen, share_done(f"measuring {len(of)} videos ({name})"), clip)
        found = losses[name].losses if name in losses else {}
        measured[name].by_clip = {key: {LOSS: value} for key, value in found.items()}
    real = measure_real(next(iter(samples.values())), chosen, clip)
    columns = {**measured, REAL: real} if any(real.by_sample.values()) else measured
    figures = summarize(columns)
    if clip is not None and clip.truncated:
        figures[CLIP_SCORE]["notes"] = [f"{len(clip.truncated)} captions were cut to CLIP's {clip.limit} tokens"]
    if features is not None:
        figures[DISTANCE] = measure_distances(samples, features)
        if REAL in columns:
            nothing = {"mean": None, "interval": None, "samples": 0}
            figures[DISTANCE][REAL] = figures[DISTANCE]["difference"][REAL] = nothing
            figures[DISTANCE]["not_measured"][REAL] = {}
    return figures, measured, real


def figures_of(file: Path, signature: str) -> dict[str, Any]:
    """What an earlier command measured of the same videos; nothing if there is no such."""
    if not file.is_file():
        return {}
    try:
        known = read_json_object(file)
        if known.get("signature") == signature:
            list(table(known["figures"]))
            return known
    except UserError as error:
        raise UserError(f"{error}; remove it, and the videos are measured again") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        raise UserError(f"{file} does not hold figures; remove it, and the videos are measured again") from None
    return {}


def draw(sheet: Path, samples: Mapping[str, Sequence[MadeVideo]]) -> None:
    """Each model's videos, and the real ones where any is known."""
    import torch

    from worldsmith.sampling.video_writer import contact_sheet, few_frames

    first = next(iter(samples.values()))[:SHEET_SAMPLES]
    rows = [(name, [few_frames(sample.file) for sample in of[:SHEET_SAMPLES]]) for name, of in samples.items()]
    if any(sample.source is not None for sample in first):
        real = [sample.unread().real for sample in first]
        none = torch.full((3, 1, 16, 16), 255, dtype=torch.uint8)
        rows.append((REAL, [none if isinstance(video, str) else video for video in real]))
    contact_sheet(sheet, rows, [str(sample.args["prompt"]) for sample in first])


def record(sample: MadeVideo, measured: Measured, out: Path) -> dict[str, Any]:
    """A sample in evaluation.json."""
    values = {**measured.by_sample[sample.name], **measured.by_group.get(sample.name, {})}
    return {
        **{name: sample.args[name] for name in ("name", "seed", "model_mode", "prompt")},
        "file": str(sample.file.relative_to(out)),
        "real": None if sample.source is None else str(sample.source.absolute()),
        "figures": {name: value for name, value in values.items() if not isinstance(value, str)},
        "not_measured": {name: value for name, value in values.items() if isinstance(value, str)},
    }
