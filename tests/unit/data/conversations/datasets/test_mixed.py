"""Several data sets as one: the falling objects' scores and questions."""

from __future__ import annotations

from itertools import islice

import pytest

from worldsmith.assets import asset_path
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.mixed import MixedDataset
from worldsmith.demo.falling_objects import FallingObjects


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    out = tmp_path_factory.mktemp("falling") / "set"
    FallingObjects(clips=3, val_clips=0).make(out)
    return str(out / "videophy2_train")


@pytest.fixture
def config(root):
    return MixedDataset.Config(
        datasets={"scores": ManifestDataset.Config(path=root), "questions": LlavaDataset.Config(path=root)}
    )


def test_every_conversation_of_every_member_is_there_once(config):
    mixed = config.build()
    scores, questions = (config.datasets[name].build() for name in ("scores", "questions"))
    assert (len(scores), len(questions), len(mixed), mixed.num_records) == (3, 4, 7, 7)
    parts = [*((questions, "questions", i) for i in range(4)), *((scores, "scores", i) for i in range(3))]
    for index, (member, name, own) in enumerate(parts):
        key, path, line = member.place(own)
        assert mixed.place(index) == (f"{name}/{key}", path, line)
        assert mixed.turns(index) == member.turns(own)
    assert [key for key, _ in mixed.listing()] == [mixed.place(i)[0] for i in range(7)]


def test_a_loader_gives_samples_of_both_kinds_and_the_same_ones_after_reading_the_config_again(config):
    processor = ChatProcessor.Config().build(folder=asset_path("tiny_reasoner"))
    loader = ChatLoader.Config(dataset=config, max_samples_per_batch=3)
    again = from_dict(to_dict(loader), ChatLoader.Config)
    packs, others = (
        [[sample.key for sample in pack] for pack in islice(made.build(processor=processor), 3)]
        for made in (loader, again)
    )
    assert packs == others
    keys = [key for pack in packs for key in pack]
    assert len(set(keys)) == 7
    assert {key.split("/")[0] for key in keys[:7]} == {"scores", "questions"}


def test_the_order_of_the_members_changes_nothing_and_their_content_does(config, root):
    turned = MixedDataset.Config(datasets=dict(reversed(config.datasets.items())))
    assert turned.build().fingerprint == config.build().fingerprint
    renamed = MixedDataset.Config(datasets={"scores": ManifestDataset.Config(path=root)})
    assert renamed.build().fingerprint != config.build().fingerprint


def test_the_system_prompt_opens_conversations_that_have_none(config):
    config.system_prompt = "Look."
    config.datasets["questions"].system_prompt = "Answer."
    mixed = config.build()
    assert [mixed.turns(index)[0].text for index in (0, 6)] == ["Answer.", "Look."]


@pytest.mark.parametrize(
    ("datasets", "said"),
    [({}, "at least one"), ({"hub": LlavaOneVision.Config(streaming=True)}, "datasets.hub: a streamed dataset")],
)
def test_what_cannot_be_mixed_is_refused(datasets, said):
    with pytest.raises(ValueError, match=said):
        MixedDataset.Config(datasets=datasets).check()
