"""Encoding in windows: the whole clip's latents for every window, memory of one window, and compilation."""

from __future__ import annotations

import logging

import pytest
import tiny_runs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.models.video_vae import windows
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.models.video_vae.windows import encode_window, window_bounds, window_frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vae")
    tiny_runs.make_vae(path)
    return path


def vae_of(folder, window=None, precision="float32"):
    return WanVAE.Config(vae_path=str(folder), precision=precision, encode_window=window).build()


def clip(frames, height=32, width=48):
    generator = torch.Generator().manual_seed(frames)
    return torch.randint(0, 256, (3, frames, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("tier", ["256", "480", "720", "768"])
def test_windows_of_the_published_tiers(tier):
    published = {"256": 68, "480": 24, "720": 8, "768": 8}
    assert {window_frames(height, width) for width, height in RESOLUTIONS[tier].values()} == {published[tier]}


def test_smaller_frames_have_the_longest_window_and_larger_ones_the_shortest():
    assert window_frames(64, 64) == 68
    assert {window_frames(h, w) for w, h in RESOLUTIONS["704"].values()} == {8}
    assert {window_frames(h, w) for w, h in RESOLUTIONS["1280"].values()} == {4}


@given(clips=st.integers(0, 60), window=st.integers(1, 20))
@settings(max_examples=50)
def test_windows_cover_every_frame_once_and_keep_whole_latent_frames(clips, window):
    bounds = list(window_bounds(4 * clips + 1, 4 * window))
    assert [i for first, end in bounds for i in range(first, end)] == list(range(4 * clips + 1))
    assert bounds[0] == (0, 1)
    assert all((end - first) % 4 == 0 and end - first <= 4 * window for first, end in bounds[1:])


def test_every_window_gives_diffusers_latents(folder):
    """Window 4 to the last bit; longer ones to 1e-6 of the largest latent, also where the last one is shorter."""
    video = clip(33)
    model = vae_of(folder).model
    with torch.no_grad():
        expected = model.encode((video.float() / 127.5 - 1)[None]).latent_dist.mode()[0]
    largest = expected.abs().max()
    assert torch.equal(vae_of(folder, 4).encode(video), expected)
    for window in (8, 12, 20, 32, None):
        assert (vae_of(folder, window).encode(video) - expected).abs().max() <= 1e-6 * largest


def test_bfloat16_windows_stay_within_its_rounding(folder):
    video = clip(17)
    one, other = (vae_of(folder, window, "bfloat16").encode(video) for window in (4, 16))
    assert (one - other).abs().max() <= 0.03 * one.abs().max()


def test_the_encoder_never_sees_more_frames_than_the_window(folder, monkeypatch):
    """What bounds memory: nothing but the uint8 clip grows with its length."""
    seen = []

    def watch(encoder, frames, caches):
        seen.append(frames.shape[2])
        return encode_window(encoder, frames, caches)

    vae = vae_of(folder, 8)
    with torch.no_grad():
        windows.encode_in_windows(vae.model, clip(29), window=8, run=watch)
    assert seen == [1, 8, 8, 8, 4]


@pytest.mark.parametrize("window", [5, 6, 2, 0])
def test_windows_that_would_cut_a_latent_frame_are_refused(window):
    with pytest.raises(ValueError, match=r"encode_window .*(multiple of 4|at least 4)"):
        WanVAE.Config(encode_window=window).check()


def compare_compiled(folder, frames, backend):
    """A compiled and a plain encoder of one VAE on the same clip; the compiled VAE."""
    plain, compiled = vae_of(folder, 4), vae_of(folder, 4)
    compiled.compile_encoder(backend)
    video = clip(frames, 32, 32)
    expected, latents = plain.encode(video), compiled.encode(video)
    assert (latents - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.equal(compiled.encode(video), latents)
    assert compiled.fingerprint != plain.fingerprint
    return compiled


def test_a_compiled_encoder_gives_the_same_latents_to_rounding_and_another_fingerprint(folder):
    """The whole encoder is one graph for each shape; inductor's code for the graphs is the slow test below."""
    compiled = compare_compiled(folder, 17, "eager")
    assert len(compiled.compiled.shapes) == 3, "the first frame, the window after it, a window after a window"


@pytest.mark.slow
def test_inductor_gives_the_same_latents_to_rounding(folder):
    assert len(compare_compiled(folder, 5, "inductor").compiled.shapes) == 2


def test_shapes_beyond_the_most_run_uncompiled_and_that_is_said_once(folder, monkeypatch, caplog):
    monkeypatch.setattr(windows, "MOST_COMPILED_SHAPES", 2)
    plain, compiled = vae_of(folder), vae_of(folder)
    compiled.compile_encoder(backend="eager")
    with caplog.at_level(logging.WARNING, logger=windows.__name__):
        for frames in (5, 9, 13):
            assert torch.allclose(compiled.encode(clip(frames)), plain.encode(clip(frames)), atol=1e-5)
    assert len(compiled.compiled.shapes) == 2
    assert [record.message for record in caplog.records] == [
        "the VAE encoder has been compiled for 2 shapes, the maximum; other shapes run uncompiled"
    ]
