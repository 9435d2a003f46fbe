"""What is decided about a sample, and who is said to have decided it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.families.cosmos3.model import Cosmos3Defaults
from worldsmith.sampling.requests import is_structured
from worldsmith.sampling.sample_args import SampleArgs, decide, settings_lines
from worldsmith.sampling.sample_files import Layer, SampleEntry, read_condition
from worldsmith.sampling.sample_settings import Sample, SampleSettings

GRID = LatentGrid(4, 16, 2)


TRAINED = Cosmos3Defaults(height=192, width=320, num_frames=61, fps=24.0, shift=3.0, append_resolution=True)


PUBLISHED = Cosmos3Defaults(
    height=720, width=1280, num_frames=189, fps=24.0, shift=10.0, image_shift=3.0, structured_metadata=True
)


def decide_all(
    flags: dict[str, Any], *layers: dict[str, Any], defaults: Cosmos3Defaults = TRAINED, folder: Path = Path()
) -> list[SampleArgs]:
    sample = Sample(prompt="x", **(layers[0] if layers else {}))
    below = [Layer(f"layer {n}", SampleSettings(**values), folder) for n, values in enumerate(layers[1:], start=1)]
    entry = SampleEntry("name", sample, [Layer("file", sample, folder), *below])
    return decide(entry, Layer("flag", SampleSettings(**flags), Path()), defaults, GRID, "model")


def one(*arguments: Any, **keywords: Any) -> SampleArgs:
    (args,) = decide_all(*arguments, **keywords)
    return args


def test_flags_win_over_the_file_over_its_defaults_over_the_model() -> None:
    args = one({"seed": 1}, {"seed": 2, "guidance": 2.0}, {"guidance": 3.0, "num_steps": 4})
    assert (args.seed, args.guidance, args.num_steps, args.shift) == (1, 2.0, 4, 3.0)
    found = [args.sources[name] for name in ("seed", "guidance", "num_steps", "shift", "image_save_quality")]
    assert found == ["flag", "file", "layer 1", "model", "default"]


@pytest.mark.parametrize(
    ("defaults", "settings", "expected"),
    [
        (TRAINED, {}, ("text2video", 61, 35, 6.0, 3.0)),
        (TRAINED, {"model_mode": "text2image"}, ("text2image", 1, 50, 4.0, 3.0)),
        (PUBLISHED, {}, ("text2video", 189, 35, 6.0, 10.0)),
        (PUBLISHED, {"num_frames": 1}, ("text2image", 1, 50, 4.0, 3.0)),
        (PUBLISHED, {"vision_path": "a.PNG"}, ("image2video", 189, 35, 6.0, 10.0)),
        (PUBLISHED, {"vision_path": "a.mp4", "num_frames": 30}, ("video2video", 33, 35, 6.0, 10.0)),
    ],
)
def test_each_mode_has_its_defaults(
    defaults: Cosmos3Defaults, settings: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    args = one({}, settings, defaults=defaults)
    assert (args.model_mode, args.num_frames, args.num_steps, args.guidance, args.shift) == expected
    if settings.get("num_frames") == 30:
        assert args.sources["num_frames"] == "file; rounded up from 30 to complete latent frames"


@pytest.mark.parametrize(
    ("flags", "settings", "size"),
    [
        ({}, {}, (192, 320)),
        ({}, {"aspect_ratio": "1,1"}, (256, 256)),
        ({}, {"resolution": "480", "aspect_ratio": "9,16"}, (832, 480)),
        ({}, {"height": 64}, (64, 320)),
        ({"resolution": "480"}, {"height": 64, "width": 64}, (480, 832)),
        ({"width": 96}, {"resolution": "480"}, (192, 96)),
    ],
)
def test_the_uppermost_layer_that_says_a_size_decides_in_which_terms(
    flags: dict[str, Any], settings: dict[str, Any], size: tuple[int, int]
) -> None:
    args = one(flags, settings)
    assert (args.height, args.width) == size


def test_several_outputs_have_seeds_that_count_up_and_folders_below_one() -> None:
    found = decide_all({"num_outputs": 3}, {"seed": 7})
    assert [(args.name, args.seed) for args in found] == [("name/0", 7), ("name/1", 8), ("name/2", 9)]


def test_texts_from_files(tmp_path: Path) -> None:
    """Beside the file that names them; JSON as one line with letters beyond ASCII escaped."""
    (tmp_path / "n.json").write_text('{\n "a": "ü"}')
    (tmp_path / "p.txt").write_text(" A horse. \n")
    args = one({}, {"negative_prompt_file": "n.json"}, folder=tmp_path)
    assert args.negative_prompt == json.dumps({"a": "ü"}) == '{"a": "\\u00fc"}'
    assert (
        one({"negative_prompt": "dull"}, {"negative_prompt_file": "n.json"}, folder=tmp_path).negative_prompt == "dull"
    )
    sample = Sample(prompt_path="p.txt")
    entry = SampleEntry("name", sample, [Layer("file", sample, tmp_path)])
    (found,) = decide(entry, Layer("flag", SampleSettings(), Path()), TRAINED, GRID, "model")
    assert found.prompt == "A horse."
    for broken in ({"negative_prompt_file": "absent.json"}, {"negative_prompt_file": "p.json"}):
        (tmp_path / "p.json").write_text("{")
        with pytest.raises(UserError, match=r"file: .*(absent|p)\.json"):
            one({}, broken, folder=tmp_path)


def test_keeping_metadata_is_another_word_for_same() -> None:
    assert one({}, {"negative_prompt_keep_metadata": True}).negative_metadata_mode == "same"
    assert (
        one({}, {"negative_prompt_keep_metadata": True, "negative_metadata_mode": "none"}).negative_metadata_mode
        == "same"
    )
    asked = {"negative_prompt_keep_metadata": True, "negative_metadata_mode": "inverse"}
    assert one({}, asked).negative_metadata_mode == "inverse"
    assert one({}).negative_metadata_mode is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_mode": "video2video"}, "does not fit a sample that has no vision_path"),
        ({"model_mode": "text2video", "vision_path": "a.png"}, "does not fit a sample that begins with a.png"),
        ({"model_mode": "text2video", "num_frames": 1}, "generates more than one frame"),
        ({"vision_path": "a.png", "num_frames": 1}, "images are generated from text only"),
        ({"vision_path": "a.png", "condition_frame_indexes_vision": [0, 1]}, r"does not match a.png; write \[0\]"),
        ({"vision_path": "a.png", "condition_video_keep": "last"}, "selects frames of a video"),
        ({"condition_video_keep": "last"}, "require a vision_path"),
        ({"resolution": "77"}, "it is not a resolution bucket"),
        ({"scheduler": "ddim"}, "scheduler: Cosmos3 always uses UniPC; omit it"),
        ({"dynamic_guidance": "off"}, "the same guidance scale at every step; omit it"),
        ({"vision_path": "a.mp4", "strength": 0.5}, "strength: conditioning frames are kept unchanged"),
    ],
)
def test_contradictions_are_refused_with_the_sample(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=rf"^file: .*{words}"):
        one({}, settings)


def test_what_nobody_says_is_asked_for() -> None:
    with pytest.raises(UserError, match="record the height, width, num_frames, fps of its training; set --height"):
        one({}, defaults=Cosmos3Defaults(shift=3.0))
    with pytest.raises(UserError, match="set --shift"):
        one({"height": 64, "width": 64, "num_frames": 5, "fps": 8.0}, defaults=Cosmos3Defaults())
    with pytest.raises(UserError, match="aspect_ratio requires a resolution"):
        one({}, {"aspect_ratio": "1,1"}, defaults=Cosmos3Defaults(height=48, width=48))


def test_lines_say_who_decided_what_for_how_many() -> None:
    samples = [one({}, {"guidance": 2.0}), one({}, {"guidance": 3.0})]
    lines = settings_lines(samples)
    assert "shift                3.0 (model)" in lines
    assert "guidance             2.0 for 1 sample, 3.0 for 1 sample (file)" in lines


def test_lines_of_a_file_do_not_grow_with_its_samples() -> None:
    samples = [one({}, {"guidance": float(index), "seed": index}) for index in range(9)]
    for index, sample in enumerate(samples):
        for name in ("guidance", "height"):
            sample.sources[name] = f"in/samples.jsonl:{index + 1}"
    lines = settings_lines(samples)
    assert "guidance             9 different values (samples.jsonl)" in lines
    assert f"height               {samples[0].height} (samples.jsonl)" in lines
    some = settings_lines(samples[:2])
    assert "guidance             0.0 for 1 sample, 1.0 for 1 sample (samples.jsonl)" in some
    samples[1].sources["guidance"] = "other/samples.jsonl:1"
    assert "guidance             1.0 (other/samples.jsonl; 1 of 2 samples)" in settings_lines(samples[:2])


def write_clip(path: Path, frames: int = 9, rotation: int | None = None) -> Path:
    """96x64, upper half green; the red level counts the frames."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for number in range(frames):
            picture = np.zeros((64, 96, 3), np.uint8)
            picture[:, :, 0] = number * 20
            picture[:32, :, 1] = 200
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_the_first_or_last_frames_of_a_video_are_read(tmp_path: Path) -> None:
    clip = str(write_clip(tmp_path / "a.mp4"))
    opening, ending = read_condition(clip, 5).numpy(), read_condition(clip, 5, last=True).numpy()
    assert opening.shape == ending.shape == (3, 5, 64, 96)
    assert np.allclose(opening[0, :, 40:].mean(axis=(1, 2)), [0, 20, 40, 60, 80], atol=5)
    assert np.allclose(ending[0, :, 40:].mean(axis=(1, 2)), [80, 100, 120, 140, 160], atol=5)


@pytest.mark.parametrize(("rotation", "half"), [(90, np.s_[:, :28]), (180, np.s_[36:]), (270, np.s_[:, 36:])])
def test_a_rotated_video_is_turned_upright(tmp_path: Path, rotation: int, half: tuple) -> None:
    """The green upper half becomes the left, the lower or the right one, as in training."""
    condition = read_condition(str(write_clip(tmp_path / "a.mp4", rotation=rotation)), 5).numpy()
    assert condition.shape[2:] == ((64, 96) if rotation == 180 else (96, 64))
    assert condition[1, 0][half].mean() > 150
    assert condition[1, 0].mean() < 130


def test_a_photo_is_turned_as_its_metadata_say(tmp_path: Path) -> None:
    """EXIF orientation 6: shown with its left column on top."""
    picture = Image.new("RGB", (96, 64))
    picture.paste((0, 200, 0), (0, 0, 48, 64))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=exif)
    condition = read_condition(str(tmp_path / "a.jpg"), 1).numpy()
    assert condition.shape == (3, 1, 96, 64)
    assert condition[1, 0, :44].mean() > 150


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("ffconcat version 1.0\nfile 'b.mp4'\n")
    write_clip(tmp_path / "b.mp4")
    with pytest.raises(ValueError, match=r"a\.mp4: .*not_a_video"):
        read_condition(str(tmp_path / "a.mp4"), 5)
    with pytest.raises(ValueError, match=r"absent\.mp4: the file does not exist"):
        read_condition(str(tmp_path / "absent.mp4"), 5)
    (tmp_path / "a.png").write_text("none")
    with pytest.raises(ValueError, match=r"a\.png"):
        read_condition(str(tmp_path / "a.png"), 1)
    with pytest.raises(ValueError, match=r"absent\.png: No such file"):
        read_condition(str(tmp_path / "absent.png"), 1)


def test_a_prompt_of_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the prompt '\{\"a\":.* is JSON that is nested too deeply"):
        is_structured('{"a":' * 50_000 + "1" + "}" * 50_000)
    assert is_structured('{"a": 1}')
    assert not is_structured('{"a"')
