"""A reasoner of the smallest size with adapters: PEFT, the merged folder and the adapter say the same; and `infer`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from reasoner_runs import make_world
from reasoners import from_pretrained, model_config, write_run
from safetensors.torch import load_file, save_file

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import question
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.lineage import Input, write_lineage

TARGETS = ["q_proj", "down_proj", "qkv"]
TOKENS = "5"
HOW = ["--task", "text", "--metrics", "bleu", "--max-new-tokens", TOKENS, "--dtype", "float32"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, questions, and an adapter that plain PEFT has written, in a folder that cannot be written."""
    torch.manual_seed(0)
    folder = make_world(tmp_path_factory.mktemp("adapters"))
    model = get_peft_model(from_pretrained(folder / "model"), LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder / "adapter")
    return folder


def evaluate(world: Path, model: str, out: str, *words: str) -> int:
    data = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]
    return main(["evaluate", str(world / model), *data, *HOW, "-o", str(world / out), *words])


def said(folder: Path) -> dict[str, str]:
    return {row["id"]: row["full_response"] for row in json.loads((folder / "results.json").read_text())}


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


@torch.no_grad()
def peft_says(world: Path) -> dict[str, str]:
    """By PEFT beside the weights, one question after the other, without anything of ours but the inputs."""
    model: Any = PeftModel.from_pretrained(from_pretrained(world / "model"), world / "adapter").eval()
    processor = ChatProcessor.Config().build(folder=world / "model")
    dataset = LlavaDataset.Config(path=str(world / "data")).build()
    found = {}
    for index in range(len(dataset)):
        prompt = processor.prompt(question(dataset.turns(index)))
        given = {"input_ids": prompt.input_ids[None], "mm_token_type_ids": prompt.token_types[None]}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        if prompt.video_patches is not None:
            given["pixel_values_videos"] = processor.media.normalize(prompt.video_patches, "video")
            given["video_grid_thw"] = prompt.video_grids
        if prompt.image_patches is not None:
            given["pixel_values"] = processor.media.normalize(prompt.image_patches, "image")
            given["image_grid_thw"] = prompt.image_grids
        out = model.generate(**given, max_new_tokens=int(TOKENS), do_sample=False)
        text = processor.tokenizer.decode(out[0, prompt.num_tokens :], skip_special_tokens=True)
        found[dataset.place(index)[0]] = text.strip()
    return found


def test_adapter_merged_folder_and_peft_agree(world: Path) -> None:
    (world / "adapter").chmod(0o555)
    assert evaluate(world, "model", "plain") == 0
    words = ("--against", str(world / "plain"), "--slices", "duration")
    assert evaluate(world, "model", "adapted", "--adapter", str(world / "adapter"), *words) == 0
    found = figures(world / "adapted")
    assert found["against"]["shared"] == 6
    assert {name: part["total"] for name, part in found["slices"]["duration"].items()} == {"0 to 2 s": 4, "no video": 2}
    merged = found["merged"]
    assert evaluate(world, os.path.relpath(merged["folder"], world), "merged_alone") == 0
    assert said(world / "adapted") == said(world / "merged_alone") == peft_says(world)
    assert said(world / "adapted") != said(world / "plain")
    assert merged["layers"] == merged["changed"] == 3
    base, whole = (load_file(folder / "model.safetensors") for folder in (world / "model", Path(merged["folder"])))
    assert merged["max_change"] == max(float((whole[name] - base[name]).abs().max()) for name in whole)
    record = json.loads((world / "adapted/lineage.json").read_text())
    assert [entry["role"] for entry in record["inputs"]] == ["base", "adapter", "dataset", "results"]


def test_a_merged_folder_is_used_for_what_it_was_made_of(world: Path) -> None:
    """Not for another adapter, nor when a file of it has lost bytes."""
    place, copy = world / "kept", world / "copy"
    shutil.copytree(world / "adapter", copy)
    words = ("--merged", str(place), "--force", "--limit", "1")
    evaluate(world, "model", "once", "--adapter", str(copy), *words)
    (folder,) = (path for path in place.iterdir() if path.is_dir())
    weights = folder / "model.safetensors"
    first = weights.stat().st_mtime_ns
    evaluate(world, "model", "once", "--adapter", str(copy), *words)
    assert weights.stat().st_mtime_ns == first
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    evaluate(world, "model", "once", "--adapter", str(copy), *words)
    assert weights.read_bytes() == whole
    matrices = load_file(copy / "adapter_model.safetensors")
    save_file({name: tensor * 2 for name, tensor in matrices.items()}, copy / "adapter_model.safetensors")
    evaluate(world, "model", "once", "--adapter", str(copy), *words)
    assert len([path for path in place.iterdir() if path.is_dir()]) == 2


def test_a_run_and_its_exported_adapter_say_the_same(world: Path) -> None:
    """The run merges as it is read; the adapter knows its base as a parent."""
    settings = {"lora_enabled": True, "lora_rank": 2, "lora_alpha": 4, "lora_target_modules": "q_proj,qkv"}
    trained = VisionLanguageModel(model_config(world / "model", **settings), seed=5)
    weights = load_file(world / "model/model.safetensors")
    for name, parameter in native_parameters(trained.network).items():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.3)
        elif name in weights:
            parameter.data.copy_(weights[name])
    run = write_run(world / "run", trained.config, trained.network, load_path=str(world / "model"))
    assert main(["export", str(run), "--format", "adapter", "--dtype", "float32", "-o", str(world / "exported")]) == 0
    evaluate(world, "run", "of_run")
    evaluate(world, "model", "of_adapter", "--adapter", str(world / "exported"))
    data = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]
    assert main(["evaluate", "--parent", str(world / "exported"), *data, *HOW, "-o", str(world / "of_parent")]) == 0
    found = json.loads((world / "exported/adapter_config.json").read_text())["base_model_name_or_path"]
    assert found == str(world / "model")
    assert evaluate(world, "exported", "alone") == 0
    (world / "model").rename(world / "moved")
    assert evaluate(world, "exported", "no_base") == 2
    assert evaluate(world, "exported", "of_base", "--base", str(world / "moved")) == 0
    (world / "moved").rename(world / "model")
    names = ("of_run", "of_adapter", "of_parent", "alone", "of_base")
    assert all(said(world / name) == said(world / "of_run") for name in names)
    assert figures(world / "of_parent")["merged"]["layers"] == 2
    assert figures(world / "alone")["adapter"] == str(world / "exported")
    record = json.loads((world / "alone/lineage.json").read_text())
    assert [entry["role"] for entry in record["inputs"]] == ["base", "adapter", "dataset"]
    spec = {"task": {"type": ""}, "model": {"model_name": str(world / "exported"), "enable_lora": True}}
    spec |= {"dataset": {"annotation_path": str(world / "data/annotations.json"), "media_dir": str(world / "data")}}
    spec |= {"results_dir": str(world / "of_spec")}
    (world / "spec.json").write_text(json.dumps(spec))
    assert main(["evaluate", "--spec", str(world / "spec.json"), *HOW]) == 0
    measured = figures(next(world.glob("of_spec/**/results.json")).parent)  # of questions as the spec asks them
    assert (measured["model"], measured["adapter"]) == (str(world / "model"), str(world / "exported"))
    assert evaluate(world, "run", "twice", "--adapter", str(world / "exported")) == 2  # it has them already


def test_answers_of_another_adapter_are_not_taken_over(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--merged", str(world / "kept"), "--limit", "1")
    evaluate(world, "model", "mine", "--adapter", str(world / "adapter"), *words)
    assert evaluate(world, "model", "mine", *words) == 2
    assert "adapter was 'sha256:" in capsys.readouterr().err


def test_an_adapter_that_does_not_fit_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrices = load_file(world / "adapter/adapter_model.safetensors")
    zero = {name: tensor * ("lora_A" in name) for name, tensor in matrices.items()}
    some = dict(list(matrices.items())[1:])
    wide = {name: tensor[:, :-1].contiguous() if "lora_A" in name else tensor for name, tensor in matrices.items()}
    other = {name.replace("layers.0", "layers.7"): tensor for name, tensor in matrices.items()}
    for name, tensors, words in (
        ("zero", zero, "changes no weight of"),
        ("some", some, "lacks a matrix of the layer"),
        ("wide", wide, "with rank 4"),
        ("other", other, "belongs to another model"),
    ):
        shutil.copytree(world / "adapter", world / name)
        (world / name).chmod(0o755)
        save_file(tensors, world / name / "adapter_model.safetensors")
        assert evaluate(world, "model", f"out_{name}", "--adapter", str(world / name)) == 2, name
        assert words in capsys.readouterr().err, name
    assert evaluate(world, "adapter", "out_two", "--adapter", str(world / "adapter")) == 2
    assert "already contains adapters; omit one of them" in capsys.readouterr().err
    config = json.loads((world / "zero/adapter_config.json").read_text())
    (world / "zero/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    assert evaluate(world, "zero", "out_alone") == 2
    assert "does not name their base model; set it with --base" in capsys.readouterr().err


def ask(world: Path, *words: str) -> int:
    how = ["--max-new-tokens", TOKENS, "--dtype", "float32"]
    return main(["infer", str(world / "model"), "--prompt", "Is the clip possible?", *how, *words])


def test_a_folder_is_asked_file_by_file(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `evaluate` asks the same questions; the answers say what was shown."""
    shutil.copytree(world / "data", world / "shown")
    (world / "shown/chat9.mp4").write_bytes(b"nothing")
    adapter = ["--adapter", str(world / "adapter")]
    assert ask(world, "--media", str(world / "shown"), "-o", str(world / "said.json"), *adapter) == 0
    told = json.loads((world / "said.json").read_text())
    answers = {Path(answer["media"][0]).stem: answer for answer in told["answers"]}
    lines = capsys.readouterr().out.splitlines()
    assert [Path(line.partition(":")[0]).name for line in lines][-1] == "chat9.mp4"
    assert answers.pop("chat9")["status"] == "prep_error"
    evaluate(world, "model", "for_infer", *adapter, "--merged", str(world / "kept"))
    expected = said(world / "for_infer")
    assert {name: answer["full_response"] for name, answer in answers.items()} == {
        name: expected[name] for name in answers
    }
    record = json.loads((world / "said.json.lineage.json").read_text())
    assert [entry["role"] for entry in record["inputs"]] == ["base", "adapter"]
    clip = answers["chat0"]
    assert "Is the clip possible?" in clip["prompt_text"]
    assert clip["shown"][0]["frames"][0] == 0
    assert told["generation"]["max_new_tokens"] == int(TOKENS)
    assert ask(world, "--media", str(world / "shown"), "-o", str(world / "said.json")) == 2  # it is there
    capsys.readouterr()
    assert ask(world, "--media", str(world / "shown"), "--kind", "image") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_media_may_be_an_archive_with_folders_in_it(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v/inner").mkdir(parents=True)
    shutil.copy(world / "data/chat0.mp4", tmp_path / "v/inner")
    (tmp_path / "v/notes.txt").touch()
    archive = shutil.make_archive(str(tmp_path / "v"), "gztar", tmp_path, "v")
    assert ask(world, "--media", archive, "--kind", "video", "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["status"] == "ok"
    assert answer["media"][0].endswith("/v/inner/chat0.mp4")
    assert ask(world, "--media", archive, "--kind", "image") == 2
    assert "v.tar.gz contains no images" in capsys.readouterr().err


def test_a_question_alone(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(world, "--video", str(world / "data/chat0.mp4"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["answers"]
    assert answer["status"] == "ok"
    assert ask(world, "--video", str(world / "gone.mp4")) == 2
    assert ask(world, "--media", str(world / "model")) == 2
    assert "contains no images or videos" in capsys.readouterr().err


def test_a_model_or_an_adapter_that_is_not_finite_answers_nothing(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(world / "model", world / "broken")
    weights = load_file(world / "broken/model.safetensors")
    name = next(name for name in weights if "q_proj" in name)
    weights[name][0, 0] = float("nan")
    save_file(weights, world / "broken/model.safetensors", metadata={"format": "pt"})
    assert main(["infer", str(world / "broken"), "--prompt", "Is it?", "--max-new-tokens", "2"]) == 2
    told = capsys.readouterr().err
    assert "broken: 1 tensor contains values that are not finite (NaN or infinity): " in told
    assert "q_proj.weight" in told
    words = ["--adapter", str(world / "adapter"), "--max-new-tokens", "2"]
    assert main(["infer", str(world / "broken"), "--prompt", "Is it?", *words]) == 2
    assert evaluate(world, "broken", "out_broken", "--adapter", str(world / "adapter")) == 2
    assert "not finite" in capsys.readouterr().err


def test_an_adapter_of_another_base_is_refused_or_said(
    world: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the fingerprint in its record, else by name; `--base` with the adapter as the model is the way around."""
    shutil.copytree(world / "model", world / "other_base")
    weights = load_file(world / "other_base/model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in weights.items()}, world / "other_base/model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    foreign = ["--adapter", str(world / "adapter"), "--max-new-tokens", "2"]
    assert main(["infer", str(world / "model"), "--prompt", "Is it?", *foreign]) == 0
    assert "names the base" not in caplog.text
    assert main(["infer", str(world / "other_base"), "--prompt", "Is it?", *foreign]) == 0
    assert caplog.text.count(f"names the base {world / 'model'}, but is applied to {world / 'other_base'}") == 1
    ours = Path(shutil.copytree(world / "adapter", world / "recorded"))
    ours.chmod(0o755)
    write_lineage(ours, action="export", settings={}, inputs=[Input("base", world / "model")], outputs=["."])
    words = ["--prompt", "Is it?", "--max-new-tokens", "2"]
    copied = shutil.copytree(world / "model", world / "same_base")
    for base in (world / "model", copied):
        assert main(["infer", str(base), "--adapter", str(ours), *words]) == 0
    capsys.readouterr()
    assert main(["infer", str(world / "other_base"), "--adapter", str(ours), *words]) == 2
    told = capsys.readouterr().err
    assert f"was trained on {world / 'model'} with the fingerprint sha256:" in told
    assert f"use {ours} as the model with --base {world / 'other_base'}" in told
    assert main(["infer", str(ours), "--base", str(world / "other_base"), *words]) == 0
    assert "used nevertheless, because --base names it" in caplog.text
    caplog.clear()
    assert main(["infer", str(ours), *words]) == 0
    write_lineage(copied, action="export", settings={}, inputs=[Input("model", world / "model")], outputs=["."])
    (copied / "config.json").write_text((copied / "config.json").read_text() + "\n")  # the same weights, exported
    assert main(["infer", str(copied), "--adapter", str(ours), *words]) == 0
    assert "base" not in caplog.text


def test_records_that_repeat_or_were_trained_on_are_counted(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever the files are, for a run and for what was exported of it; nothing is said of other records."""
    trained = VisionLanguageModel(model_config(world / "model"), seed=5)
    run = write_run(world / "overlapping", trained.config, trained.network)
    tree = (run / "config.yaml").read_text()
    data = json.dumps({"dataset": to_dict(LlavaDataset.Config(path=str(world / "data"), system_prompt="Be brief."))})
    (run / "config.yaml").write_text(tree.replace("dataloader_train: {}", f"dataloader_train: {data}"))
    assert main(["export", str(run), "-o", str(world / "of_overlapping")]) == 0
    shutil.copytree(world / "data", world / "asked", ignore=shutil.ignore_patterns("annotations.json"))
    records = json.loads((world / "data/annotations.json").read_text())
    new = {"id": "new", "conversations": [{"from": "human", "value": "Is it new?"}, {"from": "gpt", "value": "yes"}]}
    (world / "asked/chat0.mp4").rename(world / "asked/renamed.mp4")
    video = {**records[0], "video": "renamed.mp4", "id": "other"}
    (world / "asked/annotations.json").write_text(json.dumps([video, new, video, new, *records[1:2]]))
    for model in ("overlapping", "of_overlapping"):
        caplog.clear()
        asked = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "asked")]
        assert main(["evaluate", str(world / model), *asked, *HOW, "-o", str(world / f"overlap_{model}")]) == 0
        assert figures(world / f"overlap_{model}")["overlap"] == {"repeated": 2, "in_training_data": 3}
        assert (
            caplog.text.count(
                "2 of 5 records have the same text and media as an earlier record and count more than once: 3 are"
            )
            == 1
        )
        assert caplog.text.count("3 of 5 records are in the training data of the model") == 1
    caplog.clear()
    assert evaluate(world, "model", "no_overlap") == 0
    assert figures(world / "no_overlap")["overlap"] == {"repeated": 0, "in_training_data": None}
    assert "in the training data" not in caplog.text
    assert "count more than once" not in caplog.text
    (world / "data").rename(world / "data_moved")
    assert main(["evaluate", str(run), *asked, *HOW, "-o", str(world / "overlap_unknown")]) == 0
    (world / "data_moved").rename(world / "data")
    assert "cannot compare the records with the model's training data: " in caplog.text
    assert figures(world / "overlap_unknown")["overlap"]["in_training_data"] is None
