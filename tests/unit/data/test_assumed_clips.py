"""Assumed batches of clips keep to the limits of a loader."""

from dataclasses import replace

import pytest
import torch

from worldsmith.data.assumed_batches import assumed_clips
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader

GRID = LatentGrid(frames=4, pixels=16, patch=2)
PACKED = VideoLoader.Config(dataset=VideoDataset.Config(resolution="256", min_frames=61), max_sequence_length=45056)
STACKED = VideoLoader.Config(
    dataset=VideoDataset.Config(resolution="720x480", num_video_frames=49, min_frames=49),
    max_samples_per_batch=2,
    max_caption_tokens=226,
)


def test_a_full_pack_is_as_long_as_a_loader_makes_one():
    made = assumed_clips(PACKED, GRID, channels=48)
    tokens = [clip.num_tokens for clip in made.samples]
    assert PACKED.max_sequence_length - len(tokens) <= sum(tokens) < PACKED.max_sequence_length
    assert tokens[0] == GRID.sample_tokens(len(made.samples[0].text_ids), made.samples[0].latent_shape)
    assert made.samples[0].latents.shape == (48, 16, 12, 20)
    assert made.assumption == "38 clips of 61 frames of 320x192 pixels, captions of 222 tokens"


@pytest.mark.parametrize("fill", [0.5, 0.1])
def test_a_share_of_a_pack_has_that_share_of_its_tokens(fill):
    made = assumed_clips(PACKED, GRID, channels=48, fill=fill)
    assert sum(clip.num_tokens for clip in made.samples) == pytest.approx(fill * PACKED.max_sequence_length, rel=0.01)


def test_clips_that_are_longer_than_the_room_are_cut():
    made = assumed_clips(replace(PACKED, max_sequence_length=900), GRID, channels=48)
    assert [clip.num_frames for clip in made.samples] == [29]
    assert made.samples[0].num_tokens < 900


def test_stacked_clips_are_as_many_as_a_batch_has():
    made = assumed_clips(STACKED, LatentGrid(4, 8, 2), channels=32)
    assert [clip.latent_shape for clip in made.samples] == [(13, 60, 90)] * 2
    assert {len(clip.text_ids) for clip in made.samples} == {200}


def test_pixels_have_the_size_that_the_encoder_is_given_and_no_memory():
    made = assumed_clips(STACKED, GRID, channels=32, first_frames="encoded in every epoch", encoded=False)
    clip = made.samples[0]
    assert (clip.latents, clip.image.latents) == (None, None)
    assert (clip.video.shape, clip.video.dtype) == ((3, 49, 480, 720), torch.uint8)
    assert clip.video.untyped_storage().nbytes() == 1
    assert clip.image.video.shape == (3, 1, 480, 720)
