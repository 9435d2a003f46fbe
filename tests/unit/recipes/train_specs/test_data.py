"""Training specs: where their data comes from, and what is held out of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
from torch.utils.data import Subset
from train_specs import COOKBOOK, TEMPLATE, problems_of, values

from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict

TURNS = [
    {"role": "user", "content": [{"type": "video", "video": "/clips/a.mp4"}, {"type": "text", "text": "Is it?"}]},
    {"role": "assistant", "content": "yes"},
]
FILES = '[custom.dataset]\nannotation_path = "{data}/annotations.json"\nmedia_path = "{data}/clips"\n'
NO_TABLE = COOKBOOK.replace(FILES + 'system_prompt = "You are a helpful assistant."\n', "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    rows = [{"conversations": json.dumps(TURNS), "other": json.dumps(TURNS)}] * 64
    one = datasets.Dataset.from_list(rows)
    one.save_to_disk(str(folder / "set"))
    datasets.DatasetDict({"train": one, "rest": one.select(range(8))}).save_to_disk(str(folder / "splits"))
    return folder


def test_a_saved_data_set_is_read_as_the_script_of_such_specs_reads_it(read: Any, saved: Path) -> None:
    text = COOKBOOK.replace(FILES, f'[custom.dataset]\npath = "{saved}/set"\n')
    loaded = read(text, "train.train_policy.conversation_column_name=other")
    assert values(loaded, "trainer.max_iter", "dataloader_train.dataset.column") == [6, "other"]
    dataset = loaded.tree.dataloader_train.dataset.build()
    judge = datasets.load_from_disk(f"{saved}/set")
    assert len(dataset) == len(judge)
    _, user, answer = dataset.turns(5)  # the first is the spec's system prompt
    asked, told = json.loads(judge[5]["other"])
    assert [(p.kind, p.text or p.source) for p in user.parts] == [(p["type"], p[p["type"]]) for p in asked["content"]]
    assert (answer.role, answer.text) == (told["role"], told["content"])


def test_a_named_data_set_is_a_folder_with_its_splits(read: Any, saved: Path) -> None:
    words = (f"train.train_policy.dataset.name={saved}/splits", "train.train_policy.dataset.split=[train, rest]")
    loaded = read(NO_TABLE, *words)
    paths = ("split", "path", "column", "video_fps")
    found = values(loaded, *(f"dataloader_train.dataset.{name}" for name in paths))
    assert found == ["train+rest", f"{saved}/splits", "conversations", "optional"]
    assert loaded.tree.trainer.max_iter == 6  # 72 records, 32 a step, 3 passes
    held = (f"validation.dataset.name={saved}/splits", "validation.dataset.split=rest", "validation.enable=true")
    loaded = read(NO_TABLE, *words, *held)
    assert len(loaded.tree.dataloader_val.dataset.build()) == 8
    assert values(loaded, "dataloader_train.dataset.skip") == [0]


def test_a_manifest_is_a_file_of_its_folder(read: Any, tmp_path: Path) -> None:
    records = [{"id": str(n), "media": "images/a.png", "conversation": f"text/{n}.json"} for n in range(40)]
    (tmp_path / "text").mkdir()
    for record in records:
        text = json.dumps([{"role": "user", "content": [{"type": "image", "image": "image_0"}]}, TURNS[1]])
        (tmp_path / record["conversation"]).write_text(text)
    (tmp_path / "index.json").write_text(json.dumps(records))
    table = f'[custom.dataset]\ndataset_root = "{tmp_path}"\nmeta_file = "index.json"\n'
    loaded = read(COOKBOOK.replace(FILES, table))
    assert len(loaded.tree.dataloader_train.dataset.build()) == 40
    assert loaded.tree.trainer.max_iter == 3


@pytest.mark.parametrize("size", [None, 1, 7, 111, 500, 0.1, 0.25, 1.0, 0.001])
def test_the_first_records_are_held_out_as_there(read: Any, data: Path, size: float | None) -> None:
    """The judge is the rule of Cosmos-RL, on torch's own subsets."""
    records = list(range(112))
    asked = 0.1 if size is None else size
    count = max(min(int(112 * asked) if isinstance(asked, float) else asked, 111), 1)
    held, rest = Subset(records, records[:count]), Subset(records, records[count:])
    word = f"train.train_policy.dataset.test_size={'null' if size is None else size}"
    # Steps are not what this is about: a single one is asked for.
    loaded = read(COOKBOOK, word, "validation.enable=true", "train.max_num_steps=1", "batch_size=1")
    train, val = (getattr(loaded.tree, name).dataset.build() for name in ("dataloader_train", "dataloader_val"))
    assert [entry.key for entry in val.entries] == [str(number) for number in held]
    assert [entry.key for entry in train.entries] == [str(number) for number in rest]
    assert train.config.system_prompt == val.config.system_prompt == "You are a helpful assistant."
    told = f"held out {count} of 112 records for validation"
    assert sum(told in warning for warning in loaded.warnings) == 1


def test_what_is_held_out_goes_with_the_run(read: Any, tmp_path: Path) -> None:
    tree = read(COOKBOOK, "train.train_policy.dataset.test_size=12", "validation.enable=true").tree
    again = from_dict(to_dict(tree))
    assert (again.dataloader_train.dataset.skip, again.dataloader_val.dataset.limit) == (12, 12)
    assert tree.trainer.max_iter == 9  # 3 passes over the 100 that are left


def test_nothing_is_held_out_beside_validation_data_or_without_validation(read: Any, data: Path) -> None:
    size = "train.train_policy.dataset.test_size=12"
    given = f"custom.val_dataset.annotation_path={data}/annotations.json"
    for words in ((size,), (size, given, "validation.enable=true")):
        assert values(read(COOKBOOK, *words), "dataloader_train.dataset.skip") == [0]


def test_the_shipped_template_holds_a_record_out(read: Any) -> None:
    loaded = read(TEMPLATE, "mini_batch=1", suffix="yaml")
    assert values(loaded, "dataloader_val.dataset.limit", "dataloader_train.dataset.skip") == [1, 1]


def test_an_archive_is_the_media_of_a_spec(read: Any) -> None:
    loaded = read(COOKBOOK, "custom.dataset.media_path=/data/videos.tar.gz")
    assert values(loaded, "dataloader_train.dataset.media_root") == ["/data/videos.tar.gz"]
    assert "unpacked once, into a folder next to it" in loaded.report


def test_data_may_be_in_an_object_store(read: Any) -> None:
    words = ("custom.dataset.media_path=gs://b/media", "custom.dataset.annotation_path=s3://b/annotations.json")
    words = (*words, "train.max_num_steps=10")  # else the records are counted
    found = values(read(COOKBOOK, *words), "dataloader_train.dataset.path", "dataloader_train.dataset.media_root")
    assert found == ["s3://b/annotations.json", "gs://b/media"]


def test_a_size_takes_the_place_of_limits(read: Any) -> None:
    words = ("resized_height=540", "resized_width=960", "max_pixels=81920")
    loaded = read(COOKBOOK, *(f"custom.vision.{word}" for word in words))
    names = ("resized_height", "resized_width", "max_pixels", "nframes")
    assert values(loaded, *(f"dataloader_train.processor.media.{name}" for name in names)) == [540, 960, None, 8]
    assert any("custom.vision.max_pixels is dead" in warning for warning in loaded.warnings)


MEDIA = COOKBOOK.replace('media_path = "{data}/clips"', 'media_path = "clips"\nmedia_root = "clips"')


@pytest.mark.parametrize("name", ["media_path", "media_root"])
def test_a_media_folder_of_the_command_line_takes_the_place_of_both_names_in_the_file(read: Any, name: str) -> None:
    loaded = read(MEDIA, f"custom.dataset.{name}=/data/clips")
    assert values(loaded, "dataloader_train.dataset.media_root") == ["/data/clips"]
    assert values(read(MEDIA), "dataloader_train.dataset.media_root") == ["clips"]
    both = ("custom.dataset.media_path=/a", "custom.dataset.media_root=/b")
    assert list(problems_of(read, MEDIA, *both)) == ["custom.dataset.media_root"]


def test_an_empty_media_folder_of_the_command_line_takes_the_place_of_both_names(read: Any) -> None:
    loaded = read(MEDIA, "custom.dataset.media_path=")
    assert values(loaded, "dataloader_train.dataset.media_root") == [""]
    loaded = read(MEDIA, "custom.dataset.media_path=", "custom.dataset.media_root=/b")
    assert values(loaded, "dataloader_train.dataset.media_root") == ["/b"]


def test_a_root_of_the_command_line_takes_the_place_of_the_media_of_the_file(
    read: Any, data: Path, tmp_path: Path
) -> None:
    """`<root>/annotations.json`, and `<root>` as the media path."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(data / "annotations.json", root)
    word = f"custom.dataset.annotation_path={root}"
    loaded = read(MEDIA, word)  # there are no media in it: those of the file count
    assert values(loaded, "dataloader_train.dataset.media_root") == ["clips"]
    (root / "a.mp4").touch()
    loaded = read(MEDIA, word)
    assert values(loaded, "dataloader_train.dataset.path", "dataloader_train.dataset.media_root") == [str(root), ""]
    warned = [warning for warning in loaded.warnings if "contains annotations.json and the media" in warning]
    assert len(warned) == 1  # for media_path and media_root
    loaded = read(MEDIA, word, "custom.dataset.media_path=/data/clips")
    assert values(loaded, "dataloader_train.dataset.media_root") == ["/data/clips"]
    text = COOKBOOK.replace('"{data}/annotations.json"', f'"{root}"')  # of the file itself: both are meant
    assert values(read(text), "dataloader_train.dataset.media_root") == [f"{data}/clips"]


def test_a_named_folder_that_is_not_there_is_not_looked_for_on_the_hub(read: Any, tmp_path: Path) -> None:
    found = problems_of(read, NO_TABLE, f"train.train_policy.dataset.name={tmp_path}/none")
    assert found == {
        "custom.train_dataset.annotation_path": (
            "custom.train_dataset.annotation_path=FILE custom.train_dataset.media_path=FOLDER"
        )
    }
    (tmp_path / "none").mkdir()
    (tmp_path / "none/a.mp4").write_bytes(b"")
    found = problems_of(read, NO_TABLE, f"train.train_policy.dataset.name={tmp_path}/none")
    assert list(found) == ["train.train_policy.dataset.name"]
