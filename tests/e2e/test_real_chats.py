"""Real clips, and JPEG images made from their frames, become conversations with the limits of the published models.

DATASET_PATH names a folder with video_dataset_file.jsonl (or folders with one) and clips; without it, this is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from model_folder import write_limits
from PIL import Image
from toy_runs import read_losses

from worldsmith.assets import asset_path
from worldsmith.cli.main import main
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.media.media_processor import MediaProcessor
from worldsmith.tools.datasets.preview_chats import decode_media

pytestmark = pytest.mark.skipif(
    not os.environ.get("DATASET_PATH"), reason="DATASET_PATH is not set; point it to a folder with real clips"
)


def decoded(path: str, numbers: tuple[int, ...]) -> list[Image.Image]:
    """Frames of a clip by another way: PyAV's plain decoding."""
    with av.open(path) as container:
        return [frame.to_image() for number, frame in enumerate(container.decode(video=0)) if number in numbers]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """annotations.json with a question about each clip, and one about two JPEG images; a model folder beside it."""
    folder = tmp_path_factory.mktemp("chats")
    write_limits(Path(shutil.copytree(asset_path("tiny_reasoner"), folder / "model")))
    clips = []
    for lines in sorted(Path(os.environ["DATASET_PATH"]).resolve().rglob("video_dataset_file.jsonl")):
        clips += [str(lines.parent / json.loads(line)["vision_path"]) for line in lines.read_text().splitlines()]
    assert len(clips) >= 2
    for number, picture in enumerate(decoded(clips[0], (0,)) + decoded(clips[1], (0,))):
        picture.save(folder / f"{number}.jpg", quality=95)

    def record(name: str, **media: Any) -> dict[str, Any]:
        turns = [{"from": "human", "value": "Is it plausible?"}, {"from": "gpt", "value": "yes"}]
        return {"id": name, **media, "conversations": turns}

    records = [record(f"clip{number}", video=clip) for number, clip in enumerate(clips)]
    records.append(record("images", images=["0.jpg", "1.jpg"]))
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_all_are_read(chats: Path, workers: int) -> None:
    processor = ChatProcessor.Config().build(folder=chats / "model")
    dataset = LlavaDataset.Config(path=str(chats))
    config = ChatLoader.Config(dataset=dataset, max_samples_per_batch=1, num_workers=workers)
    loader = config.build(processor=processor)
    samples = {pack[0].key: pack[0] for pack in islice(loader, len(loader.dataset))}
    assert len(samples) == loader.dataset.num_records
    assert not loader.quarantine.keys
    assert all(sample.num_supervised for sample in samples.values())
    assert processor.media is not None
    for index in range(len(loader.dataset)):
        sample = samples[loader.dataset.place(index)[0]]
        sources = [str(part.source) for part in loader.dataset.turns(index)[0].parts if part.kind != "text"]
        for source, (kind, frames) in zip(sources, decode_media(sample, processor.media), strict=True):
            if kind == "image":
                shown = [Image.open(source)]
            else:
                plan = processor.media.plan_video(source)
                assert len(frames) == len(plan.indices) + len(plan.indices) % 2
                shown = decoded(source, (plan.indices[0], plan.indices[-1]))
            for expected, found in zip(shown, frames[[0, -1]]):
                size = (found.shape[2], found.shape[1])
                pixels = np.asarray(expected.resize(size, Image.Resampling.BICUBIC), float).transpose(2, 0, 1)
                assert np.abs(pixels - found).mean() < 1


def test_tokens_are_bounded_by_the_settings(chats: Path) -> None:
    """A budget of pixels bounds the tokens of every clip, whatever its length and size."""
    media = MediaProcessor.Config(fps=2.0, max_frames=16, total_pixels=16 * 256 * 256)
    processor = ChatProcessor.Config(media=media).build(folder=chats / "model")
    dataset = LlavaDataset.Config(path=str(chats)).build()
    for index in range(len(dataset) - 1):
        (plan,) = processor.plan(dataset.turns(index)).media
        count = len(plan.indices)
        assert count <= 16
        # The formula scales by the frames as they are; an odd number of them is one more in tokens.
        assert plan.tokens <= 16 * 256 * 256 / (2 * 32 * 32) * (count + count % 2) / count


def test_twenty_steps_learn_the_one_answer_and_give_it(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny twin of videophy2_sft_nano on clips and images together; then it is asked about one of each."""
    for name, value in {"VLM_SAFETENSORS_PATH": "none", "WORLDSMITH_OUTPUT_ROOT": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    kind = f"{LlavaDataset.__module__}.LlavaDataset"
    words = [
        *("--trainer.max_iter", "20", "--trainer.grad_accum_iter", "1", "--trainer.run_validation", "false"),
        *("--trainer.cpu_threads", "1", "--optimizer.lr", "1e-3", "--data_setting.max_tokens", "16000"),
        *("--dataloader_train.processor.media.fps", "1", "--dataloader_train.processor.media.max_frames", "6"),
        *("--dataloader_train.processor.media.max_pixels", "65536"),
        *("--", f"dataloader_train.dataset={{type: {kind}, path: {chats}}}", "dataloader_val=null"),
    ]
    assert main(["train", "videophy2_nano_tiny", *words]) == 0
    losses = [loss for _, loss, *_ in read_losses(tmp_path / "worldsmith/sft/videophy2_nano_tiny")]
    assert len(losses) == 20
    assert losses[-1] < 0.7 * losses[0]
    assert not (tmp_path / "worldsmith/sft/videophy2_nano_tiny/quarantine.jsonl").exists()
    records = json.loads((chats / "annotations.json").read_text())
    for shown in (["--video", records[0]["video"]], ["--image", str(chats / "0.jpg")]):
        capsys.readouterr()
        run = str(tmp_path / "worldsmith/sft/videophy2_nano_tiny")
        assert main(["infer", run, "--prompt", "Is it plausible?", "--max-new-tokens", "4", *shown]) == 0
        assert capsys.readouterr().out.strip() == "yes"
