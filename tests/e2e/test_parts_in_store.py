"""Runs whose VAE, text encoder, model folder and conversations are in an object store, against the same on disk."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import reasoner_runs
import tiny_runs
from object_store import ObjectStore, connected, serving
from tiny_runs import read_losses

from worldsmith.cli.main import main
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.conversations.datasets.mixed import MixedDataset
from worldsmith.data.conversations.datasets.qa_pairs import QaPairsDataset
from worldsmith.data.conversations.datasets.saved import SavedDataset
from worldsmith.data.conversations.media.image_patches import read_image
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files import remote
from worldsmith.models.video_vae.cogvideox import CogVideoXVAE
from worldsmith.models.video_vae.wan_files import find_vae, require_vae
from worldsmith.tools.check.check import find_dataset
from worldsmith.tools.evaluate.answer_records import count_trained_on, read_records
from worldsmith.training.callbacks.samples.draw_answers import DrawAnswers
from worldsmith.training.preflight import check_files
from worldsmith.training.trainer import Trainer

pytest.importorskip("s3fs")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with serving() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    with connected(server, monkeypatch, tmp_path / "cache") as store:
        yield store


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory, server: ObjectStore) -> Path:
    world = reasoner_runs.make_world(tmp_path_factory.mktemp("chats"))
    server.put_folder(world, "chats")
    return world


def losses_of(config: Trainer.Config, folder: Path) -> list:
    Trainer(config, run_folder=folder).train()
    return read_losses(folder)


@pytest.mark.parametrize(
    "family", ["cosmos3", "flux", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cogvideox", "wan"))]
)
def test_a_generator_with_its_parts_in_a_store_trains_as_with_those_on_disk(
    family: str, store: ObjectStore, tmp_path: Path
) -> None:
    """Every tenth request fails; of a pipeline, only the files of the parts in use are downloaded, and only once."""
    world = tmp_path / "world"
    if family == "cosmos3":
        tiny_runs.make_world(world, clips=2)
        config = tiny_runs.tiny_config(world, steps=2)
        parts = [config.model.config.tokenizer, config.model.config.text_tokenizer]
    else:
        pipeline_runs.make_world(family, world)
        config = pipeline_runs.pipeline_config(family, world, steps=2)
        parts = [config.model.config.tokenizer, config.model.config.text_encoder]
    config.dataloader_train.latent_cache = ""
    near = losses_of(config, tmp_path / "near")
    names = {
        str(path) for section in parts for path in (getattr(section, "vae_path", ""), getattr(section, "path", ""))
    }
    for name in names - {""}:
        store.put_folder(Path(name), f"{family}/{Path(name).name}")
        store.put(f"{family}/{Path(name).name}/transformer/diffusion_pytorch_model.safetensors", b"not in use")
    for section in parts:
        field = "vae_path" if hasattr(section, "vae_path") else "path"
        setattr(section, field, f"s3://bucket/{family}/{Path(getattr(section, field)).name}")
    store.fail(every=10)
    store.requests()
    assert losses_of(config, tmp_path / "far") == near
    store.fail()
    gets = [request for request in store.requests() if request.startswith(f"GET /bucket/{family}/")]
    assert not [request for request in gets if "transformer" in request]
    assert losses_of(config, tmp_path / "again") == near
    assert not [request for request in store.requests() if request.startswith(f"GET /bucket/{family}/")]


def test_a_reasoner_with_model_and_conversations_in_a_store_trains_as_with_those_on_disk(
    chats: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """Every 20th request fails, every 7th body is cut off; a resume on another machine goes on exactly. Answers that
    are drawn during the run, and their media, are the same."""
    config = reasoner_runs.reasoner_config(chats, steps=4, save_iter=2)
    config.trainer.callbacks["answers"] = DrawAnswers.Config(every=2, samples=3, max_new_tokens=2)
    near = losses_of(config, tmp_path / "near")
    config.model.config.policy.backbone.model_name = "s3://bucket/chats/model"
    config.dataloader_train.dataset.path = "s3://bucket/chats/data"
    store.fail(every=20, cut=7)
    config.trainer.max_iter = 2
    losses_of(config, tmp_path / "far")
    shutil.rmtree(remote.cache_folder().parent)
    remote.remote_facts.cache_clear()
    config.trainer.max_iter, config.dataloader_train.num_workers = 4, 2
    assert losses_of(config, tmp_path / "far") == near
    assert not (tmp_path / "far/quarantine.jsonl").exists()
    drawn = [answers_in(tmp_path / name) for name in ("near", "far")]
    assert drawn[0] == drawn[1]
    assert any(media for _, media in drawn[0])


def answers_in(run: Path) -> list[tuple[str, bytes | None]]:
    """Each drawn answer with the content of its image or video."""
    lines = map(json.loads, (run / "answers/samples.jsonl").read_text().splitlines())
    return [(line["answer"], line["media"] and (run / line["media"]).read_bytes()) for line in lines]


def test_conversations_in_a_store_are_evaluated_as_those_on_disk(
    chats: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--max-new-tokens", "3", "--dtype", "float32", "--task", "text", "--metrics", "bleu", "--dataset"]
    found = []
    for place in (str(chats), "s3://bucket/chats"):
        out = tmp_path / str(len(found))
        words = [*how, "LlavaDataset", "--dataset.path", f"{place}/data", "-o", str(out)]
        assert main(["evaluate", f"{place}/model", *words, "--dryrun"]) == 0
        assert "5 of them exist" in capsys.readouterr().out
        assert main(["evaluate", f"{place}/model", *words]) == 0
        rows = json.loads((out / "results.json").read_text())
        (saved,) = (out / "answers").glob("*.jsonl")
        marks = [json.loads(line)["asked"] for line in saved.read_text().splitlines()]
        found.append(([(row["id"], row["response"]) for row in rows], marks))
    assert found[0] == found[1]


def write_forms(folder: Path) -> None:
    """The media of `chats/data` in the other layouts of conversations, one folder for each."""
    from datasets import Dataset

    source = folder / "data"
    records = json.loads((source / "annotations.json").read_text())
    for name in ("messages", "manifest", "saved", "benchmark", "parquet", "packed"):
        (folder / name).mkdir()
        if name != "packed":
            for file in (*source.glob("*.mp4"), *source.glob("*.png")):
                shutil.copy(file, folder / name)
    videos = [record for record in records if "video" in record]

    def asks(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
        parts = [{"type": "video", "video": name}, {"type": "text", "text": "Is it?"}]
        return [{"role": "user", "content": parts}, {"role": "assistant", "content": "yes"}]

    lines = [json.dumps({"id": one["id"], "messages": asks(one, one["video"])}) for one in videos]
    (folder / "messages/messages.jsonl").write_text("\n".join(lines))
    for one in videos:
        (folder / f"manifest/{one['id']}.json").write_text(json.dumps(asks(one, "video_0")))
    meta = [{"id": one["id"], "media": one["video"], "conversation": f"{one['id']}.json"} for one in videos]
    (folder / "manifest/meta.json").write_text(json.dumps([*meta, {**meta[0], "conversation": "absent.json"}]))
    pair = {"question": "Is it?", "index2ans": {"A": "yes", "B": "no"}, "answer": "A"}
    pairs = [{"video": one["video"], "qa_pairs": [pair]} for one in videos]
    (folder / "benchmark/benchmark_benchmark_qa_pairs.json").write_text(json.dumps(pairs))
    rows = {"video": [one["video"] for one in videos], "conversations": [one["conversations"] for one in videos]}
    Dataset.from_dict(rows).save_to_disk(folder / "saved")
    picture = {"bytes": (source / "chat2.png").read_bytes(), "path": None}
    turns = [{"from": "human", "value": "<image>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    Dataset.from_dict({"id": ["a"], "image": [picture], "conversations": [turns]}).to_parquet(
        folder / "parquet/train-00000-of-00001.parquet"
    )
    shutil.copy(source / "annotations.json", folder / "packed")
    with tarfile.open(folder / "packed/videos.tar", "w") as archive:
        for file in (*source.glob("*.mp4"), *source.glob("*.png")):
            archive.add(file, file.name)


def samples_of(dataset: Any, model: Path) -> list:
    """Tokens and patches of each conversation."""
    from worldsmith.data.conversations.chat_processor import ChatProcessor

    processor = ChatProcessor.Config().build(folder=model)
    samples = [processor.encode(dataset.turns(index), key=str(index)) for index in range(len(dataset))]
    patches = [[one.image_patches, one.video_patches] for one in samples]
    sums = [[None if tensor is None else tensor.sum().item() for tensor in both] for both in patches]
    return [(one.input_ids.tolist(), one.labels.tolist(), *both) for one, both in zip(samples, sums)]


def test_every_layout_of_conversations_in_a_store_is_that_on_disk(
    chats: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples, keys, rejections and fingerprints; media in an archive, too; every 15th request fails."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    shutil.copytree(chats / "data", tmp_path / "forms/data")
    write_forms(tmp_path / "forms")
    store.put_folder(tmp_path / "forms", "forms")
    store.fail(every=15)
    kinds: dict[str, tuple[type, dict[str, Any]]] = {
        "data": (LlavaDataset, {}),
        "packed": (LlavaDataset, {}),
        "messages": (MessagesDataset, {}),
        "manifest": (ManifestDataset, {}),
        "benchmark": (QaPairsDataset, {}),
        "saved": (SavedDataset, {}),
        "parquet": (LlavaOneVision, {"subset": ""}),
    }
    for name, (kind, settings) in kinds.items():
        near = kind.Config(path=str(tmp_path / "forms" / name), **settings).build()
        far = kind.Config(path=f"s3://bucket/forms/{name}", **settings).build()
        assert samples_of(far, chats / "model") == samples_of(near, chats / "model") != [], name
        if name == "parquet":
            continue
        assert far.fingerprint == near.fingerprint, name
        assert [far.place(index)[0] for index in range(len(far))] == [
            near.place(index)[0] for index in range(len(near))
        ]
        assert [one.reason for one in far.rejections] == [one.reason for one in near.rejections], name
        assert far.rejections or name != "manifest"
    archive = LlavaDataset.Config(
        path="s3://bucket/forms/data/annotations.json", media_root="s3://bucket/forms/packed/videos.tar"
    ).build()
    near = LlavaDataset.Config(path=str(tmp_path / "forms/data")).build()
    assert samples_of(archive, chats / "model") == samples_of(near, chats / "model")
    mixed = MixedDataset.Config(datasets={"a": archive.config, "b": near.config}).build()
    assert len(mixed) == 2 * len(near)
    for path, kind in {"data": LlavaDataset, "manifest": ManifestDataset, "messages": MessagesDataset}.items():
        found, _ = find_dataset(f"s3://bucket/forms/{path}", None)
        assert type(found) is kind.Config, "as `worldsmith check` does"


def test_a_subset_in_a_store_is_that_on_disk(
    chats: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README of the folder names the subsets; streaming is refused."""
    from datasets import Dataset

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    picture = {"bytes": (chats / "data/chat2.png").read_bytes(), "path": None}
    turns = [{"from": "human", "value": "<image>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    for name in ("one", "other"):
        rows = {"id": [name], "image": [picture], "conversations": [turns]}
        Dataset.from_dict(rows).to_parquet(tmp_path / f"data/{name}/train-00000.parquet")
    subsets = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in ("one", "other"))
    (tmp_path / "data/README.md").write_text(f"---\nconfigs:\n{subsets}---\n")
    store.put_folder(tmp_path / "data", "subsets")
    for kind in (LlavaOneVision, SavedDataset):
        near = kind.Config(path=str(tmp_path / "data"), subset="other").build()
        far = kind.Config(path="s3://bucket/subsets", subset="other").build()
        assert samples_of(far, chats / "model") == samples_of(near, chats / "model") != []
    with pytest.raises(DataError, match=r"Set dataset\.streaming to false"):
        LlavaOneVision.Config(path="s3://bucket/subsets", subset="other", streaming=True).build()


def test_a_replaced_data_set_file_is_read_again(chats: Path, store: ObjectStore) -> None:
    records = json.loads((chats / "data/annotations.json").read_text())
    for count in (2, 3):
        store.put("replaced/annotations.json", json.dumps(records[:count]).encode())
        assert len(LlavaDataset.Config(path="s3://bucket/replaced").build()) == count


def test_training_data_in_a_store_is_found_again_in_an_evaluation_on_disk(chats: Path, store: ObjectStore) -> None:
    near = LlavaDataset.Config(path=str(chats / "data")).build()
    far = LlavaDataset.Config(path="s3://bucket/chats/data").build()
    for asked, trained in ((near, far), (far, near), (far, far)):
        records = read_records(asked, limit=None, task_field="", slices=[])
        assert count_trained_on(records, trained) == len(near) > 0


def test_frame_rates_are_added_to_conversations_in_a_store(chats: Path, store: ObjectStore, tmp_path: Path) -> None:
    texts = {}
    for name, source in {"near": str(chats / "data"), "far": "s3://bucket/chats/data"}.items():
        out = tmp_path / f"{name}.json"
        assert main(["dataset", "annotate-fps", source, "--out", str(out)]) == 0
        texts[name] = out.read_text()
    assert texts["far"] == texts["near"]
    assert '"video_fps": 8.0' in texts["near"]


def test_media_that_cannot_be_read_are_rejected_and_addresses_may_be_absolute(
    chats: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """A dataset file on disk with the addresses of its media; one is missing, one denied, one cut off, one empty."""
    picture = (chats / "data/chat2.png").read_bytes()
    store.put("media/good.png", picture)
    store.put("media/half.png", picture[: len(picture) // 2])
    store.put("media/empty.png", b"")
    store.put("private/secret.png", picture)
    store.fail(denied="private")
    names = ("media/good.png", "media/absent.png", "media/half.png", "media/empty.png", "private/secret.png")
    turns = [{"from": "human", "value": "<image>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    records = [{"id": name, "image": f"s3://bucket/{name}", "conversations": turns} for name in names]
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    (tmp_path / "here.png").write_bytes(picture)
    records.append({"id": "here", "image": "here.png", "conversations": turns})
    records.append({"id": "unknown", "image": "foo://bucket/a.png", "conversations": turns})
    (tmp_path / "annotations.json").write_text(json.dumps(records))
    store.requests()
    dataset = LlavaDataset.Config(path=str(tmp_path)).build()
    assert list(dataset.flags()) == []
    assert store.requests() == [], "records are checked without a request for each"
    loader = ChatLoader.Config(dataset=dataset.config, max_sequence_length=500, num_workers=0, max_bad_fraction=1)
    processor = loader.processor.build(folder=chats / "model")
    packs = loader.build(processor=processor).first_pass()
    assert sorted(sample.key for pack in packs for sample in pack) == ["here", "media/good.png"]
    reasons = []
    for index in (1, 2, 3, 4, 6):
        with pytest.raises(SampleError) as found:
            processor.encode(dataset.turns(index))
        reasons.append(found.value.reason)
        assert ("denies access" in found.value.detail) == (index == 4)
    assert reasons == ["missing_file", "truncated", "empty_file", "unreadable", "unreadable"]
    assert (read_image("s3://bucket/media/good.png", (32, 32)) == read_image(picture, (32, 32))).all()


def test_parts_and_conversations_that_are_not_there_are_reported_before_the_start(
    chats: Path, store: ObjectStore, tmp_path: Path
) -> None:
    tiny_runs.make_world(tmp_path / "world", clips=2)
    config = tiny_runs.tiny_config(tmp_path / "world", cache=False)
    store.put("nothing/readme.txt", b"x")
    config.model.config.tokenizer.vae_path = config.model.config.text_tokenizer.path = "s3://bucket/nothing"
    problems = "\n".join(map(str, check_files(config, tmp_path / "run")))
    assert "vae_path s3://bucket/nothing: no vae/config.json or Wan2.2_VAE.pth or config.json in it" in problems
    assert "text_tokenizer.path s3://bucket/nothing: no text_tokenizer/tokenizer_config.json" in problems
    for path in ("s3://bucket/absent", "s3://absent/x", "s3://bucket/absent.json"):
        with pytest.raises(DataError, match=rf"{path}.*does not exist: expected a file, or a folder with annotations"):
            LlavaDataset.Config(path=path).build()
    store.put_folder(chats / "data", "packed_nowhere")
    dataset = LlavaDataset.Config(path="s3://bucket/packed_nowhere", media_root="s3://bucket/absent.tar").build()
    with pytest.raises(DataError, match=r"s3://bucket/absent\.tar: the store has no such file"):
        dataset.turns(0)
    with pytest.raises(DataError, match=r"cannot be loaded.*no \*\.parquet or \*\.arrow"):
        SavedDataset.Config(path="s3://bucket/nothing").build()
    store.fail(denied="bucket")
    assert len(re.findall("denies access", "\n".join(map(str, check_files(config, tmp_path / "run"))))) == 2
    with pytest.raises(DataError, match="denies access"):
        LlavaDataset.Config(path="s3://bucket/private").build()


def test_a_vae_file_in_the_original_layout_is_downloaded_with_its_config(store: ObjectStore, tmp_path: Path) -> None:
    store.put("vae/Wan2.2_VAE.pth", b"weights")
    store.put("vae/Wan2.2_VAE.json", b'{"_class_name": "another"}')
    store.put("vae/other.pth", b"not in use")
    require_vae("s3://bucket/vae/Wan2.2_VAE.pth", 16)
    found = find_vae("s3://bucket/vae/Wan2.2_VAE.pth")
    assert sorted(path.name for path in found.parent.iterdir()) == ["Wan2.2_VAE.json", "Wan2.2_VAE.pth"]
    with pytest.raises(ValueError, match="contains a another"):
        require_vae("s3://bucket/vae/Wan2.2_VAE.pth", 16)
    store.put("sat/3d-vae.pt", b"weights")
    config = CogVideoXVAE.Config(vae_path="s3://bucket/sat/3d-vae.pt")
    config.check_files()
    with pytest.raises(ValueError, match="does not state the scaling factor"):
        config.find()
    store.put("sat/3d-vae.json", b'{"scaling_factor": 0.7}')
    assert config.find().read_bytes() == b"weights"
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/sat/absent\.pt: the store has no such file"):
        CogVideoXVAE.Config(vae_path="s3://bucket/sat/absent.pt").check_files()


def test_questions_are_asked_about_media_in_a_store(
    chats: Path, store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder, an archive and one file each give the answers of those on disk."""
    with tarfile.open(tmp_path / "media.tar", "w") as archive:
        for file in sorted((chats / "data").glob("*.mp4")):
            archive.add(file, file.name)
    store.put("media.tar", (tmp_path / "media.tar").read_bytes())
    how = ["--prompt", "What is it?", "--max-new-tokens", "3", "--dtype", "float32"]
    places = {
        str(chats / "data"): "s3://bucket/chats/data",
        str(tmp_path / "media.tar"): "s3://bucket/media.tar",
        str(chats / "data/chat0.mp4"): "s3://bucket/chats/data/chat0.mp4",
    }
    for near, far in places.items():
        answers = []
        for media in (near, far):
            out = tmp_path / "answers.json"
            assert main(["infer", str(chats / "model"), "--media", media, *how, "--out", str(out)]) == 0
            answers.append([(Path(one["media"][0]).name, one["full_response"]) for one in outcomes(out)])
            out.unlink()
        assert answers[0] == answers[1] != []
    capsys.readouterr()
    shown = "s3://bucket/chats/data/chat0.mp4", f"file://{chats / 'data/chat0.mp4'}"
    answers = [(main(["infer", str(chats / "model"), "--video", v, *how]), capsys.readouterr().out) for v in shown]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
    assert main(["infer", str(chats / "model"), "--video", "s3://bucket/chats/data/absent.mp4", *how]) == 2
    assert "s3://bucket/chats/data/absent.mp4 is not a file" in capsys.readouterr().err


def outcomes(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(out.read_text())["answers"]
    return found
