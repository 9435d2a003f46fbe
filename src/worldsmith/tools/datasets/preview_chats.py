"""`worldsmith dataset preview MODEL`: shows conversations as the input of a model."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from worldsmith.actions.action import Action, ColoredLine, Result
from worldsmith.config import UserError, wrong
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.config.load import load
from worldsmith.config.write.values import escape_controls
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import IGNORED, ChatProcessor, ChatSample
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.data.stream.errors import SampleError
from worldsmith.models.model_files import local_folder

KINDS: tuple[Literal["text", "image", "video"], ...] = ("text", "image", "video")
SUPERVISED, PLACEHOLDER, PLAIN = "\x1b[1;32m", "\x1b[2;36m", "\x1b[0m"


class PreviewChats(Action):
    """Shows conversations as the model receives them: text, tokens, supervised tokens, and scaled frames.

    Supervised tokens are green, or enclosed in [[ ]] without colors. --dataset selects the layout: ManifestDataset
    (VideoPhy-2), LlavaDataset, MessagesDataset or LlavaOneVision; --dataset.path its file or folder. With --run
    instead of a model, the training data of that run are shown.
    """

    places: ClassVar[tuple[str, ...]] = ("model",)

    class Config(Action.Config):
        model: str | None = None
        """Folder with the tokenizer, the chat template and the preprocessor files, or a hub repository (org/name)."""
        run: str | None = None
        """A reasoner recipe, its TOML or YAML file, or a run folder; replaces model, dataset and processor."""
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """Dataset of conversations."""
        processor: ChatProcessor.Config = field(default_factory=ChatProcessor.Config)
        """Preprocessing of conversations to tokens and patches."""
        first: NotNegative = 0
        """Index of the first conversation to show."""
        count: Count = 3
        """Number of conversations to show."""
        frames: Count = 8
        """Max number of frames shown per video."""
        out: str | None = None
        """Folder for the frames as PNG files; null: frames are shown in the terminal if it supports colors."""

        def check(self) -> None:
            if (self.model is None) == (self.run is None):
                raise wrong(self, "model", "run", why="one of them is required", remedy="set exactly one")
            for name, default in (("dataset", ManifestDataset.Config()), ("processor", ChatProcessor.Config())):
                if self.run is not None and getattr(self, name) != default:
                    raise wrong(self, "run", why=f"the run already has a {name}", remedy=f"omit {name}")

    config: Config

    def sources(self) -> tuple[ChatDataset, ChatProcessor]:
        """Returns the dataset and the processor of the settings, or of the run `--run`.

        Raises UserError if that run does not train on conversations.
        """
        config = self.config
        if config.run is None:
            folder = local_folder(str(config.model), file_patterns=("*.json", "*.jinja", "*.txt"), field="model")
            return config.dataset.build(), config.processor.build(folder=folder)
        tree = load(config.run).tree
        loader = tree.dataloader_train
        if not isinstance(loader, ChatLoader.Config):
            raise UserError(
                f"{config.run} trains on captioned clips, not on conversations: use `worldsmith train --dryrun` to "
                "show a clip"
            )
        return loader.dataset.build(), loader.processor.build(folder=tree.model.config.build(device="meta").folder)

    def run(self) -> Result:
        config = self.config
        dataset, processor = self.sources()
        reasons = Counter(rejection.reason for rejection in dataset.rejections)
        left_out = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())) or "none"
        lines = [f"{dataset.name}: {dataset.num_records} records; skipped: {left_out}"]
        lines += [f"  {rejection.key}: {rejection.reason}: {rejection.detail}" for rejection in dataset.rejections[:3]]
        shown = [
            self.show_conversation(dataset, processor, index, lines)
            for index in range(config.first, min(config.first + config.count, len(dataset)))
        ]
        return Result(lines, {"records": dataset.num_records, "left_out": dict(reasons), "samples": shown})

    def show_conversation(self, dataset: Any, processor: ChatProcessor, index: int, lines: list[str]) -> dict[str, Any]:
        """Appends output lines on the conversation `index` to `lines`, and returns its content as plain data.

        The keys are `key`, `tokens` and `supervised` (numbers of tokens), `text` (token spans) and `media` (from
        `show_media`). The keys of a skipped conversation are `key`, `left_out` (reason) and `detail`.
        """
        key = dataset.place(index)[0]
        try:
            sample = processor.encode(dataset.turns(index), key=key)
        except SampleError as error:
            lines += ["", f"{key}: skipped: {error}"]
            return {"key": key, "left_out": error.reason, "detail": error.detail}
        found = token_spans(sample, processor.tokenizer)
        lines += ["", f"{key}: {sample.num_tokens} tokens, {sample.num_supervised} supervised"]
        lines.append(ColoredLine(format_spans(found, colour=has_colours()).rstrip("\n")))
        media = list(self.show_media(sample, processor, lines))
        facts = {"key": key, "tokens": sample.num_tokens, "supervised": sample.num_supervised}
        return {**facts, "text": [asdict(span) for span in found], "media": media}

    def show_media(self, sample: Any, processor: ChatProcessor, lines: list[str]) -> Iterator[dict[str, Any]]:
        """Appends output lines on each image and video of a sample to `lines`, and saves or shows frames.

        Yields a dict per image or video: `kind`, `frames`, `height` and `width` in pixels and, if saved, `file`.
        """
        if processor.media is None:
            return
        for number, (kind, frames) in enumerate(decode_media(sample, processor.media)):
            count, _, height, width = frames.shape
            fact: dict[str, Any] = {"kind": kind, "frames": count, "height": height, "width": width}
            line = f"{kind}: {width}×{height} px" + (f", {count} frames" if kind == "video" else "")
            sheet = contact_sheet(frames, self.config.frames)
            if self.config.out is not None:
                name = re.sub(r"[^\w.-]+", "_", sample.key)
                file = Path(self.config.out, f"{name}_{number}.png")
                file.parent.mkdir(parents=True, exist_ok=True)
                sheet.save(file)
                fact["file"] = str(file)
                line += f", {file}"
            lines.append(line)
            if self.config.out is None and has_colours():
                lines += map(ColoredLine, terminal_lines(sheet, shutil.get_terminal_size().columns))
            yield fact


def has_colours() -> bool:
    """Returns whether standard output is a terminal with colors."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of one type that are all supervised or all unsupervised, with their text."""

    text: str
    tokens: int
    supervised: bool
    kind: Literal["text", "image", "video"]
    """Type of the tokens; for placeholder tokens of an image or a video, `text` has the placeholder only once."""


def token_spans(sample: ChatSample, tokenizer: Any) -> list[TokenSpan]:
    """Groups consecutive tokens of a sample that have the same type and supervision into spans, in order."""
    columns = zip(sample.input_ids.tolist(), sample.labels.tolist(), sample.token_types.tolist())
    found = []
    for (supervised, kind), group in groupby(columns, key=lambda column: (column[1] != IGNORED, column[2])):
        ids = [token for token, _, _ in group]
        text = tokenizer.decode(ids[:1] if kind else ids, clean_up_tokenization_spaces=False)
        found.append(TokenSpan(text, len(ids), supervised, KINDS[kind]))
    return found


def format_spans(found: list[TokenSpan], *, colour: bool) -> str:
    """Formats token spans as text: supervised text is green, or in [[ ]] without color."""
    before, after = (SUPERVISED, PLAIN) if colour else ("[[", "]]")
    dim, plain = (PLACEHOLDER, PLAIN) if colour else ("", "")
    texts = []
    for span in found:
        text = escape_controls(span.text)
        if span.kind != "text":
            texts.append(f"{dim}{text}×{span.tokens}{plain}")
        else:
            texts.append(f"{before}{text}{after}" if span.supervised else text)
    return "".join(texts)


def decode_media(sample: ChatSample, media: MediaProcessor) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (kind, frames) for every image and video of a sample: "image" or "video", and uint8 [T, 3, H, W].

    The frames are restored from the patches of the sample; `media` has the patch sizes.
    """
    from worldsmith.data.conversations.media.image_patches import unpatchify

    sides = media.images
    for kind, patches, grids in (
        ("image", sample.image_patches, sample.image_grids),
        ("video", sample.video_patches, sample.video_grids),
    ):
        if patches is None or grids is None:
            continue
        start = 0
        for grid in grids.tolist():
            rows = patches[start : start + int(np.prod(grid))].numpy()
            start += len(rows)
            frames = unpatchify(rows, grid, patch=sides.patch, merge=sides.merge, temporal=sides.temporal)
            yield kind, frames[:1] if kind == "image" else frames


def contact_sheet(frames: np.ndarray, max_frames: int) -> Image.Image:
    """Returns an image with at most `max_frames` evenly spaced frames of a video [T, 3, H, W] side by side."""
    chosen = np.linspace(0, len(frames) - 1, min(max_frames, len(frames))).round().astype(int)
    return Image.fromarray(np.concatenate(list(frames[chosen].transpose(0, 2, 3, 1)), axis=1))


def terminal_lines(picture: Image.Image, columns: int) -> Iterator[str]:
    """Yields lines that show an image in a terminal with 24-bit colors, at most `columns` characters wide.

    Each character shows two pixels, one above the other.
    """
    width = min(columns, picture.width)
    height = max(2, round(picture.height * width / picture.width / 2) * 2)
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BOX))
    for upper, lower in zip(pixels[::2], pixels[1::2]):
        cells = (f"\x1b[38;2;{a};{b};{c}m\x1b[48;2;{d};{e};{f}m▀" for (a, b, c), (d, e, f) in zip(upper, lower))
        yield "".join(cells) + PLAIN
