from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from worldsmith.data.clips.clip_frames import CoverCrop, Framing, cover_and_crop, read_frames
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_decoder import VideoInfo, decode, examine, opened, pick, pick_few


def look(path: Path) -> VideoInfo:
    return examine(str(path))[1]


def read(path: Path, indices: range, target: tuple[int, int]) -> np.ndarray:
    info = look(path)
    return read_frames(str(path), info, indices, Framing(target, "training"))


def reason_of(path: Path, indices: range = range(0, 17)) -> SampleError:
    with pytest.raises(SampleError) as caught:
        read_frames(str(path), examine(str(path))[1], indices, Framing((96, 64), "training"))
    return caught.value


def graph_frames(path: Path, geometry: CoverCrop) -> np.ndarray:
    """The independent route: a libavfilter graph scales and crops."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        graph = av.filter.Graph()
        source = graph.add_buffer(template=stream)
        g = geometry
        last = source
        for name, arguments in (
            # H.264 pictures have their chroma samples at the left of a pixel pair, half-way between two lines.
            ("scale", f"{g.width}:{g.height}:flags=bicubic+accurate_rnd+bitexact:in_h_chr_pos=0:in_v_chr_pos=128"),
            ("format", "rgb24"),
            ("crop", f"{g.crop_width}:{g.crop_height}:{g.left}:{g.top}"),
            ("buffersink", None),
        ):
            node = graph.add(name, arguments)
            last.link_to(node)
            last = node
        graph.configure()
        frames = []
        for frame in container.decode(stream):
            graph.push(frame)
            frames.append(graph.pull().to_ndarray())
        return np.stack(frames).transpose(3, 0, 1, 2)


def test_probe_states_size_rate_and_frames(tmp_path: Path, write_clip: Callable) -> None:
    assert look(write_clip(tmp_path / "a.mp4", frames=19, fps=8)) == VideoInfo(96, 64, 8.0, 19, 0)


def test_frames_are_counted_where_the_container_does_not_state_them(tmp_path: Path, write_clip: Callable) -> None:
    path = write_clip(tmp_path / "a.mkv", frames=19)
    assert av.open(str(path)).streams.video[0].frames == 0
    assert look(path).num_frames == 19


def test_frames_that_a_cut_hides_are_not_counted(tmp_path: Path, write_clip: Callable) -> None:
    """As a copy from the fifth frame on, without encoding anew, makes it: the first four are there and not shown."""
    write_clip(tmp_path / "a.mp4", frames=19)
    with (
        av.open(str(tmp_path / "a.mp4")) as source,
        av.open(str(tmp_path / "b.mp4"), "w", options={"avoid_negative_ts": "disabled"}) as out,
    ):
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.pts, packet.dts = packet.pts - 4 * packet.duration, packet.dts - 4 * packet.duration
                packet.stream = stream
                out.mux(packet)
    with av.open(str(tmp_path / "b.mp4")) as cut:
        assert cut.streams.video[0].frames == 19
        assert len(list(cut.decode(video=0))) == 15
    assert look(tmp_path / "b.mp4").num_frames == 15
    frames = read(tmp_path / "b.mp4", range(15), (96, 64))
    assert frames[0, [0, -1], 0, 0].tolist() == pytest.approx([40, 180], abs=12)


def test_titles_that_are_not_utf8_do_not_matter(tmp_path: Path, write_clip: Callable) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=9)
    data = path.read_bytes()
    assert b"Lavf" in data, "the name of the muxer is a piece of metadata"
    path.write_bytes(data.replace(b"Lavf", b"Caf\xe9"))
    if int(av.__version__.partition(".")[0]) < 19:  # which replaces what is wrong by itself
        with pytest.raises(UnicodeDecodeError):
            av.open(str(path))
    assert look(path).num_frames == 9


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.webm", "a.avi"])
@pytest.mark.parametrize(("frames", "fps"), [(5, 8), (17, 24), (61, 30)])
def test_an_even_rate_is_the_containers_base_rate(
    tmp_path: Path, write_clip: Callable, name: str, frames: int, fps: int
) -> None:
    codec = "libvpx" if name.endswith("webm") else "libx264"
    info = look(write_clip(tmp_path / name, frames=frames, fps=fps, codec=codec))
    assert (info.fps, info.variable_rate) == (fps, False)


@pytest.mark.parametrize("clock", [10, 5, 1])
def test_unevenly_spaced_frames_have_their_average_rate(tmp_path: Path, write_clip: Callable, clock: int) -> None:
    """60, 120 and 600 ticks a second, between two frames a random number of them: the duration stays the real one."""
    steps = np.random.RandomState(0).randint(15 // clock, 40 // clock, 89) * clock
    times = [0, *np.cumsum(steps).tolist()]
    info = look(write_clip(tmp_path / "a.mov", frames=90, fps=30, times=times))
    assert info.variable_rate
    assert info.duration == pytest.approx(times[-1] / 600, rel=0.03)
    assert info.fps < 0.7 * 600 / clock


def test_scaling_and_cropping_equal_a_filter_graph(tmp_path: Path, write_clip: Callable) -> None:
    """The same bits as libavfilter's scale + crop, on noise, where any offset would show."""
    path = write_clip(tmp_path / "a.mp4", frames=9, width=160, height=96, noise=True)
    assert np.array_equal(read(path, range(9), (64, 64)), graph_frames(path, cover_and_crop(160, 96, (64, 64))))


def test_scaling_is_bicubic_as_in_pillow(tmp_path: Path, write_clip: Callable) -> None:
    """Pillow's bicubic of the decoded picture agrees closely, its bilinear and nearest do not agree as well."""
    path = write_clip(tmp_path / "a.mp4", frames=1, width=64, height=64, noise=True, options={})
    frame = next(av.open(str(path)).decode(video=0)).to_image()
    mine = read(path, range(1), (128, 128))[:, 0].transpose(1, 2, 0).astype(float)

    def distance(method: Image.Resampling) -> float:
        return float(np.abs(np.asarray(frame.resize((128, 128), method), float) - mine).mean())

    # The decoded chroma has half the size and is scaled on its own, so the agreement is close and not exact.
    assert distance(Image.Resampling.BICUBIC) < 12
    assert distance(Image.Resampling.BICUBIC) < distance(Image.Resampling.BILINEAR)
    assert distance(Image.Resampling.BICUBIC) < distance(Image.Resampling.NEAREST)


def test_exactly_the_asked_frames_come_in_order(tmp_path: Path, write_clip: Callable) -> None:
    """The red level counts the frames: 4, 7, 10, … must show 40, 70, 100."""
    path = write_clip(tmp_path / "a.mp4", frames=20)
    frames = read(path, range(4, 19, 3), (96, 64))
    assert frames.shape == (3, 5, 64, 96)
    assert frames.dtype == np.uint8
    assert np.allclose(frames[0, :, 40:].mean(axis=(1, 2)), [40, 70, 100, 130, 160], atol=4)


def test_a_rotated_clip_is_read_upright(tmp_path: Path, write_clip: Callable) -> None:
    """Metadata that asks for a quarter turn counter-clockwise: the green upper half becomes the left half."""
    path = write_clip(tmp_path / "a.mp4", rotation=90)
    assert look(path) == VideoInfo(64, 96, 8.0, 17, 1)
    frames = read(path, range(5), (64, 96))
    assert frames.shape == (3, 5, 96, 64)
    assert frames[1, 0, :, :28].mean() > 150
    assert frames[1, 0, :, 36:].mean() < 50


def test_a_window_before_the_damage_is_still_read(tmp_path: Path, write_clip: Callable) -> None:
    whole = write_clip(tmp_path / "a.mp4", frames=40, noise=True, options={"movflags": "faststart"})
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.6)])
    assert np.array_equal(read(cut, range(5), (96, 64)), read(whole, range(5), (96, 64)))
    error = reason_of(cut, range(33))
    assert error.reason == "truncated"
    assert "40" in error.detail


def test_reasons_for_files_that_are_no_readable_video(tmp_path: Path, write_clip: Callable) -> None:
    """Each kind of damage has a reason of its own."""
    whole = write_clip(tmp_path / "whole.mp4", noise=True).read_bytes()
    (tmp_path / "text.mp4").write_text("This is a letter, not a video.\n" * 50)
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "no_index.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut_index.mp4").write_bytes(whole[:-200])
    (tmp_path / "folder.mp4").mkdir()
    write_audio(tmp_path / "audio.mp4")
    with av.open(str(tmp_path / "header_only.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.start_encoding()
    found = {path.stem: reason_of(path).reason for path in sorted(tmp_path.iterdir()) if path.stem != "whole"}
    assert found == {
        "text": "not_a_video",
        "folder": "not_a_video",
        "empty": "empty_file",
        "no_index": "truncated",
        "cut_index": "truncated",
        "audio": "no_video_stream",
        "header_only": "no_frames",
    }
    assert reason_of(tmp_path / "absent.mp4").reason == "missing_file"


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A FIFO, whose reader waits for ever, and a device without an end."""
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "zero.mp4").symlink_to("/dev/zero")
    assert (reason_of(tmp_path / "pipe.mp4").reason, reason_of(tmp_path / "pipe.mp4").detail) == (
        "not_a_video",
        "expected a file, found a FIFO",
    )
    assert reason_of(tmp_path / "zero.mp4").detail == "expected a file, found a device"


@pytest.mark.parametrize(
    ("name", "text"),
    [("list.mp4", "ffconcat version 1.0\nfile 'other.mp4'\n"),
     ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.mp4\n#EXT-X-ENDLIST\n"),
     ("a%d.png", "pattern")],
)  # fmt: skip
def test_lists_of_other_files_are_no_clips(tmp_path: Path, write_clip: Callable, name: str, text: str) -> None:
    """They would show what no record names."""
    write_clip(tmp_path / "other.mp4")
    Image.new("RGB", (96, 64)).save(tmp_path / "a1.png")
    (tmp_path / name).write_text(text)
    assert reason_of(tmp_path / name).reason == "not_a_video"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm", "a.avi", "a.mov", "a.ts", "a.mpg", "a.flv", "a.gif"])
def test_containers_of_single_clips_are_read(tmp_path: Path, write_clip: Callable, name: str) -> None:
    codec = {"webm": "libvpx", "mpg": "mpeg2video", "gif": "gif"}.get(name[2:], "libx264")
    if codec == "gif":
        pictures = [Image.new("RGB", (96, 64), (10 * i, 0, 0)) for i in range(5)]
        pictures[0].save(tmp_path / name, save_all=True, append_images=pictures[1:], duration=100)
    else:
        write_clip(tmp_path / name, frames=5, fps=25, codec=codec)
    assert (look(tmp_path / name).width, look(tmp_path / name).num_frames) == (96, 5)


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "bmp", "tiff"])
def test_pictures_are_clips_of_one_frame_and_cut_ones_are_no_clips(tmp_path: Path, ending: str) -> None:
    noise = np.random.RandomState(0).randint(0, 256, (64, 96, 1), np.uint8).repeat(3, 2)
    picture = tmp_path / f"a%02d.{ending}"  # as a sequence would be named
    Image.fromarray(noise).save(picture)
    assert look(picture).num_frames == 1
    with Image.open(picture) as opened_by_pillow:
        wanted = np.asarray(opened_by_pillow.convert("RGB"), np.int16).transpose(2, 0, 1)
    assert np.abs(read(picture, range(1), (96, 64))[:, 0] - wanted).max() <= 2
    for share in (0.2, 0.6, 0.99):
        cut = tmp_path / f"{share}.{ending}"
        cut.write_bytes(picture.read_bytes()[: int(share * picture.stat().st_size)])
        assert reason_of(cut, range(1)).reason in ("not_a_video", "truncated")


def test_a_picture_is_read_upright(tmp_path: Path) -> None:
    turned = Image.new("RGB", (96, 64))
    exif = turned.getexif()
    exif[0x112] = 6
    turned.save(tmp_path / "a.jpg", exif=exif)
    assert (look(tmp_path / "a.jpg").width, look(tmp_path / "a.jpg").height) == (64, 96)


def write_audio(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        for number in range(10):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "0"}),
        ("libx264", {"bf": "3", "x264-params": "open-gop=1:keyint=12:b-pyramid=normal"}),
        ("libx264", {"bf": "8", "b_strategy": "0"}),
        ("mpeg4", {"bf": "2"}),
    ],
)
def test_frames_that_lie_apart_are_the_same_as_one_by_one(tmp_path: Path, name: str, codec: str, options: dict) -> None:
    path = str(tmp_path / name)
    write_moving(path, codec, options)
    info = examine(path)[1]
    whole = [frame.to_ndarray(format="rgb24") for frame in pick(path, info, range(info.num_frames))]
    assert len(whole) == info.num_frames == 50
    for indices in ([0, 49], [49], [7], [0, 1, 2, 30], list(range(0, 50, 5)), list(range(50))):
        found = [frame.to_ndarray(format="rgb24") for frame in pick_few(path, info, indices)]
        assert len(found) == len(indices)
        assert all(np.array_equal(frame, whole[index]) for frame, index in zip(found, indices))


def test_frames_that_nothing_is_built_on_are_not_decoded(tmp_path: Path) -> None:
    path = str(tmp_path / "a.mp4")
    write_moving(path, "libx264", {"bf": "3", "b_strategy": "0"})
    with opened(path) as (container, stream):
        decoded = list(decode(container, stream, examine(path)[1], needed=set()))
    assert 10 < len(decoded) < 30


def test_a_cut_file_is_cut_for_frames_that_lie_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    write_moving(str(path), "libx264", {"bf": "3"})
    info = examine(str(path))[1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SampleError, match="truncated"):
        list(pick_few(str(path), info, [0, 49]))


def write_moving(path: str, codec: str, options: dict[str, str]) -> None:
    """50 frames of a pattern that moves, with a cut to noise now and then."""
    random = np.random.RandomState(1)
    pattern = random.randint(0, 256, (64, 96, 3)).astype(np.uint8)
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=24, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for number in range(50):
            picture = np.roll(pattern, 3 * number, axis=1) if number % 17 else random.randint(0, 256, pattern.shape)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")))
        container.mux(stream.encode())
