"""Assumed batches of conversations keep to the limits of a loader, and to the layout that positions are made of."""

from dataclasses import replace

import pytest

from worldsmith.assets import asset_path
from worldsmith.data.assumed_batches import assumed_chats
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.media.media_processor import MediaProcessor

PADS = {"image": 510, "video": 511}
IMAGES = ChatLoader.Config(dataset=LlavaDataset.Config(path="x"), max_sequence_length=2048, max_samples_per_batch=1)


@pytest.fixture(scope="module")
def media() -> MediaProcessor:
    return MediaProcessor(MediaProcessor.Config(), folder=asset_path("tiny_reasoner"))


@pytest.mark.parametrize("fill", [1.0, 0.5])
def test_one_conversation_is_as_long_as_its_share_of_the_cap(media, fill):
    (sample,) = assumed_chats(IMAGES, media, PADS, fill=fill).samples
    assert sample.num_tokens == min(2047, int(2048 * fill))
    assert sample.num_supervised == 100


def test_patches_and_placeholders_belong_together(media):
    (sample,) = assumed_chats(IMAGES, media, PADS).samples
    places = (sample.input_ids == PADS["image"]).sum()
    assert places == (sample.token_types == 1).sum() == sample.image_grids.prod(-1).sum() // 4
    assert sample.image_patches.shape == (4 * places, 1536)
    assert sample.image_patches.untyped_storage().nbytes() == 1


def test_without_a_cap_on_tokens_there_are_as_many_conversations_as_a_batch_has(media):
    data = replace(IMAGES, max_sequence_length=None, max_samples_per_batch=16)
    made = assumed_chats(data, media, PADS, fill=0.5)
    assert len(made.samples) == 8
    assert made.assumption.startswith("8 conversations of 369 tokens, each with 1 image of 320x192 pixels")


@pytest.mark.parametrize(("fill", "tokens"), [(1.0, 500), (0.5, 250)])
@pytest.mark.parametrize("kind", [LlavaDataset, ManifestDataset])
def test_no_conversation_is_longer_than_a_sample_may_be(media, kind, fill, tokens):
    data = replace(IMAGES, dataset=kind.Config(path="x"), max_sequence_length=2001, max_sample_tokens=500)
    made = assumed_chats(replace(data, max_samples_per_batch=4), media, PADS, fill=fill)
    assert sum(sample.num_tokens for sample in made.samples) == pytest.approx(2000 * fill, rel=0.01)
    assert max(sample.num_tokens for sample in made.samples) <= 500
    longest = assumed_chats(replace(data, max_sequence_length=None, max_samples_per_batch=4), media, PADS).samples
    assert (len(longest), max(sample.num_tokens for sample in longest) <= 500) == (4, True)


def test_the_frames_of_a_video_are_apart(media):
    data = replace(IMAGES, dataset=ManifestDataset.Config(path="x"), max_samples_per_batch=None)
    for sample in assumed_chats(data, media, PADS).samples:
        runs = (sample.token_types.diff() == 2).sum()
        assert runs == sample.video_grids[:, 0].sum()


def test_a_model_of_texts_gets_texts():
    (sample,) = assumed_chats(IMAGES, None, {}).samples
    assert (sample.num_tokens, sample.image_grids) == (2047, None)
