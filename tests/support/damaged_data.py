"""Data sets with every kind of damage, made on the spot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

FRAMES = 17


def encode(path: Path, frames: int = FRAMES) -> None:
    """A clip of noise, so that its size is in the pictures and half a file lacks half of them."""
    random = np.random.RandomState(0)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(frames):
            picture = random.randint(0, 256, (64, 96, 3)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def encode_audio(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        for number in range(10):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def line(uuid: str, *, clip: str = "", windows: int = 1, record: dict[str, Any] | None = None, **window: Any) -> str:
    """A record; `record` and `window` change its keys, None takes one away."""
    whole = {"start_frame": 0, "end_frame": FRAMES - 1, "temporal_interval": 1, "caption": f"clip {uuid}"}
    one = {k: v for k, v in {**whole, **window}.items() if v is not None}
    several = [{**one, "start_frame": number} if number else one for number in range(windows)]
    fields = {"uuid": uuid, "duration": 2.1, "width": 96, "height": 64, "vision_path": clip or f"videos/{uuid}.mp4"}
    return json.dumps({**fields, **(record or {}), "t2w_windows": several})


def damaged_files(folder: Path, good: int) -> None:
    """`good` sound clips in `folder`/videos, and files that are none."""
    videos = folder / "videos"
    videos.mkdir(parents=True)
    encode(videos / "good0.mp4")
    whole = (videos / "good0.mp4").read_bytes()
    for number in range(1, good):
        (videos / f"good{number}.mp4").write_bytes(whole + b"\0\0\0\x08free" * number)
    (videos / "text.mp4").write_text("Dear reader, this is not a film.\n" * 40)
    (videos / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (videos / "empty.mp4").touch()
    (videos / "folder.mp4").mkdir()
    os.mkfifo(videos / "fifo.mp4")
    encode_audio(videos / "audio.mp4")


CLIP_REASONS = {
    "bad_json": 1, "bad_record": 5, "empty_file": 1, "missing_file": 2, "no_caption": 1, "no_video_stream": 1,
    "not_a_video": 3, "over_token_cap": 1, "too_long": 1, "too_short": 1, "truncated": 1,
    "window_out_of_range": 1,
}  # fmt: skip
"""What is left out of `damaged_clips`, with 500 tokens a pack, windows of 5 frames at least and a second a byte."""


def damaged_clips(folder: Path, good: int = 8) -> Path:
    """Sound clips, of which one has two windows and one is a copy, and 19 kinds of damage; returns the file."""
    damaged_files(folder, good)
    lines = [line(f"good{n}", windows=1 + (n == 3)) for n in range(good)]
    lines += [line("again", clip="videos/good0.mp4", caption="clip good0")]
    lines += [line(name) for name in ("text", "cut", "empty", "folder", "fifo", "audio", "absent")]
    sound = {"clip": "videos/good0.mp4"}
    lines += [
        line("nul", clip="videos/\0.mp4"),
        line("half", caption="\ud800 of a pair", **sound),
        line("short", end_frame=2, **sound),
        line("outside", start_frame=40, end_frame=56, **sound),
        line("large", caption="word " * 120, **sound),
        line("good0"),
        line("silent", caption=None, **sound),
        line("remote", clip="memory://bucket/clip.mp4"),
        line("long", record={"duration": 100.0}, **sound),
        line("windowless", windows=0, **sound),
        line("texts", start_frame="0", **sound),
        '{"uuid": "half a li',
    ]
    file = folder / "video_dataset_file.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


CHAT_REASONS = {
    "bad_record": 3, "empty_file": 1, "missing_file": 2, "no_answer": 2, "no_video_stream": 1, "not_a_video": 3,
    "over_token_cap": 1, "truncated": 2, "unknown_role": 1,
}  # fmt: skip


def damaged_chats(folder: Path, good: int = 8) -> Path:
    """Sound conversations about clips, and 16 kinds of damage; returns the file."""
    damaged_files(folder, good)
    picture = Image.fromarray(np.random.RandomState(1).randint(0, 256, (64, 96, 3)).astype(np.uint8))
    picture.save(folder / "half.png")
    (folder / "half.png").write_bytes((folder / "half.png").read_bytes()[:9000])
    names = [*(f"good{n}" for n in range(good)), "text", "cut", "empty", "folder", "fifo", "audio", "absent"]
    turns = [{"from": "human", "value": "Is it possible?"}, {"from": "gpt", "value": "no"}]
    records: list[Any] = [{"id": name, "video": f"videos/{name}.mp4", "conversations": turns} for name in names]
    sound = {"video": "videos/good0.mp4"}
    records += [
        {"id": "half", "image": "half.png", "conversations": turns},
        {"id": "silent", **sound, "conversations": turns[:1]},
        {"id": "wordless", **sound, "conversations": [turns[0], {"from": "gpt", "value": " "}]},
        {"id": "who", **sound, "conversations": [turns[0], {"from": "oracle", "value": "no"}]},
        {"id": "tags", **sound, "conversations": [{"from": "human", "value": "<image>?"}, turns[1]]},
        {"id": "surrogate", **sound, "conversations": [{"from": "human", "value": "\udc00?"}, turns[1]]},
        {"id": "remote", "video": "memory://bucket/a.mp4", "conversations": turns},
        {"id": "large", "conversations": [{"from": "human", "value": "word " * 2000}, turns[1]]},
        {"id": "again", **sound, "conversations": turns},
        "no record",
    ]
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder / "annotations.json"
