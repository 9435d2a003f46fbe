"""Losses, gradient norms and checkpoints of small runs are those of the golden file, which an earlier version made.

The clips are lossless, so that no encoder has a say. Other processors round otherwise: numbers are equal to 1e-3, names
and shapes exactly. `python tests/e2e/test_golden_numbers.py` (with tests/support on PYTHONPATH) writes the file anew.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tiny_runs import make_tokenizer, make_vae, read_checkpoint, read_losses, tiny_config

GOLDEN = Path(__file__).parents[1] / "golden" / "numbers.json"
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora_enabled": True, "lora_rank": 2},
    "three_way": {"joint_attn_implementation": "three_way", "video_temporal_causal": True},
}


def make_lossless_clips(folder: Path) -> None:
    (folder / "videos").mkdir(parents=True)
    lines = []
    for index in range(4):
        frames = 9 if index % 3 == 0 else 5
        with av.open(str(folder / "videos" / f"{index}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=8, options={"qp": "0"})
            stream.width = stream.height = 64
            stream.pix_fmt, stream.thread_count = "yuv420p", 1
            for time in range(frames):
                y, x = np.mgrid[0:64, 0:64]
                luma = (x * 3 + 9 * time + 40 * index) % 256
                chroma = np.stack([(x[:32, :32] * 4 + 20 * index) % 256, (y[:32, :32] * 4 + 5 * time) % 256])
                planes = np.concatenate([luma.ravel(), chroma.ravel()]).astype(np.uint8).reshape(96, 64)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
            container.mux(stream.encode(None))
        window = {"start_frame": 0, "end_frame": frames - 1, "temporal_interval": 1, "caption": f"clip {index} moves"}
        record = {"uuid": f"clip{index}", "width": 64, "height": 64, "nb_frames": frames, "framerate": 8.0}
        lines.append({**record, "vision_path": f"videos/{index}.mp4", "t2w_windows": [window]})
    (folder / "video_dataset_file.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def numbers_of(variant: str, folder: Path) -> dict[str, Any]:
    """What a run of four steps with two packs each logs and saves."""
    make_lossless_clips(folder / "data")
    make_tokenizer(folder / "tokenizer")
    make_vae(folder / "vae")
    config = tiny_config(folder, steps=4)
    for name, value in VARIANTS[variant].items():
        setattr(config.model.config, name, value)
    trainer = config.build(run_folder=folder / "run")
    trainer.train()
    tensors = read_checkpoint(folder / "run" / "checkpoints" / "iter_000000004")
    return {
        "steps": [list(step) for step in read_losses(folder / "run")],
        "checkpoint": {
            name: [list(tensor.shape), str(tensor.dtype), tensor.double().norm().item()]
            for name, tensor in sorted(tensors.items())
            if "rng_state" not in name
        },
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_numbers_are_those_of_the_golden_file(variant: str, tmp_path: Path) -> None:
    golden, found = json.loads(GOLDEN.read_text())[variant], numbers_of(variant, tmp_path)
    assert found["steps"] == [pytest.approx(step, rel=1e-3) for step in golden["steps"]]
    assert list(found["checkpoint"]) == list(golden["checkpoint"])
    for name, (shape, dtype, norm) in golden["checkpoint"].items():
        assert found["checkpoint"][name] == [shape, dtype, pytest.approx(norm, rel=1e-3, abs=1e-6)], name


if __name__ == "__main__":
    text = json.dumps({name: numbers_of(name, Path(tempfile.mkdtemp())) for name in VARIANTS}, indent=1)
    text = re.sub(r"\[[^{}\[\]]*(\[[^\[\]]*\][^\[\]]*)?\]", lambda found: " ".join(found[0].split()), text)
    Path(sys.argv[1] if len(sys.argv) > 1 else GOLDEN).write_text(text + "\n")
