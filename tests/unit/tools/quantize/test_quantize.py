"""`worldsmith quantize`: what it refuses, how it judges, and what it leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from reasoner_runs import make_world
from reasoners import from_pretrained
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from worldsmith.checkpoint.formats.find_model import load_model
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import question, say
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.monitor.lineage import read_lineage
from worldsmith.sampling.generate_answers import Answer, Answerer
from worldsmith.tools.quantize.quantize import TimedAnswers, compare_answers


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random reasoner in model/, conversations in data/, and in own/ the same with its own answers as true ones."""
    folder = make_world(tmp_path_factory.mktemp("quantize"))
    data = LlavaDataset.Config(path=str(folder / "data")).build()
    asked = [(data.place(index)[0], question(data.turns(index))) for index in range(len(data))]
    answerer = Answerer(load_model(folder / "model"), ChatProcessor.Config())
    said = {answer.key: answer.text for answer in answerer.answers(asked, batch_size=6, max_new_tokens=24)}
    records = json.loads((folder / "data/annotations.json").read_text())
    for record in records:
        record["conversations"][1]["value"] = said[record["id"]] or "nothing"
    (folder / "own").mkdir()
    (folder / "own/annotations.json").write_text(json.dumps(records))
    return folder


def quantize(world: Path, out: Path, scheme: str, *words: str) -> int:
    own = ["--questions", "LlavaDataset", "--questions.path", str(world / "own")]
    own += ["--questions.media_root", str(world / "data"), "--max-new-tokens", "24", "--batch-size", "6"]
    return main(["quantize", str(world / "model"), "-o", str(out), "--scheme", scheme, *own, *words])


def test_a_good_result_is_published_and_recorded(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FP8 with observed ranges, and GPTQ; so much freedom that it passes."""
    data = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data"), "--max-sequence-length", "40"]
    data += ["--method", "gptq"]
    assert quantize(world, tmp_path / "small", "FP8", "--tolerance", "100", *data) == 0
    said = capsys.readouterr().out
    assert "passed: accuracy 1.000 before" in said
    facts = json.loads((tmp_path / "small/quantization.json").read_text())
    calibration, check = facts["calibration"], facts["check"]
    assert (calibration["used"], calibration["left_out"]) == (2, {"too_long": 4})
    assert calibration["longest"] == 47
    assert (check["questions"], check["accuracy_before"]) == (6, 1.0)
    assert check["accuracy_after"] == check["same_answers"] == pytest.approx(1 - check["became_wrong"] / 6)
    record = read_lineage(tmp_path / "small")
    assert [(entry["role"], Path(entry["path"]).parent.name) for entry in record.inputs] == [
        ("model", world.name), ("dataset", "data"), ("dataset", "own"),
    ]  # fmt: skip
    assert all(record.change(entry, record.folder / entry["path"]) is None for entry in record.outputs)
    assert quantize(world, tmp_path / "small", "W8A16", "--group-size", "32", "--tolerance", "100") == 2
    assert "--force" in capsys.readouterr().err
    again = ["--group-size", "32", "--tolerance", "100", "--force"]
    assert quantize(world, tmp_path / "small", "W8A16", *again) == 0
    assert main(["infer", str(tmp_path / "small"), "--prompt", "Is the clip possible?", "--max-new-tokens", "2"]) == 0


def test_a_bad_result_is_put_aside(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights in 4 bits say something else: 2 points are less than one answer of six."""
    same = [
        "--dataset",
        "LlavaDataset",
        "--dataset.path",
        str(world / "own"),
        "--dataset.media_root",
        str(world / "data"),
    ]
    assert quantize(world, tmp_path / "small", "W4A16", "--group-size", "32", "--method", "gptq", *same) == 1
    said = capsys.readouterr().out
    assert "the questions were also used for calibration" in said
    assert said.splitlines()[-1].startswith("REJECTED: accuracy 1.000 before, 0.")
    assert [path.name for path in tmp_path.iterdir()] == ["small.rejected"]
    assert not json.loads((tmp_path / "small.rejected/quantization.json").read_text())["check"]["passed"]


def test_what_cannot_be_done_is_said_before_anything_is(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(world / "model"), ["-o", str(tmp_path / "small")]
    for words, reason in (
        ([model], "names no dataset to check the result (or use --no-judge): use --questions KIND"),
        (
            [model, "--no-judge", "--scheme", "NVFP4"],
            "names no dataset to observe activations with: use --dataset KIND",
        ),
        ([model, "--no-judge", "--max-sequence-length", "9"], "FP8_DYNAMIC needs no calibration"),
        ([model, "--no-judge", "--questions", "LlavaDataset"], "no questions are answered"),
        ([model, "--no-judge", "--device", "cuda:9"], "CUDA device"),
        ([model, "--no-judge", "--scheme", "W4A16"], "use --group-size 32"),
    ):
        assert main(["quantize", *words, *out]) == 2, words
        assert reason in " ".join(capsys.readouterr().err.split()), words
    own = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data"), "--no-judge", "--scheme", "FP8"]
    assert main(["quantize", model, *out, *own, "--max-sequence-length", "9"]) == 2
    reason = "no conversation for calibration: too_long 6; the longest has 47 tokens, raise max_sequence_length"
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not any(tmp_path.iterdir())
    assert main(["quantize", model, "--no-judge", "--dryrun", *out]) == 0
    assert "times smaller than in bfloat16" in capsys.readouterr().out
    assert main(["quantize", model, "--no-judge", *out]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "not checked: no questions were answered"
    for command in ("quantize", "export"):
        assert main([command, str(tmp_path / "small"), "-o", str(tmp_path / "again")]) == 2
        assert "contains quantized weights" in capsys.readouterr().err


def test_adapters_are_merged_into_their_base(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PEFT writes the adapter, with the name of its base, and merges it."""
    config = LoraConfig(r=2, target_modules=r".*language_model.*down_proj", init_lora_weights=False)
    adapted: Any = get_peft_model(from_pretrained(world / "model"), config)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    for file in (world / "model").glob("*token*"):
        shutil.copy(file, tmp_path / "merged")
    common = ["--no-judge", "--scheme", "W4A16", "--group-size", "32"]
    own = [str(world / "model"), "--adapter", str(tmp_path / "adapter")]
    assert main(["quantize", *own, *common, "-o", str(tmp_path / "small")]) == 0
    assert main(["quantize", str(tmp_path / "adapter"), *common, "-o", str(tmp_path / "of_adapter")]) == 0
    assert main(["quantize", str(tmp_path / "merged"), *common, "-o", str(tmp_path / "other")]) == 0
    first, *others = (load_file(tmp_path / name / "model.safetensors") for name in ("small", "of_adapter", "other"))
    for second in others:
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list((tmp_path / "small").glob("adapter*"))


@pytest.mark.parametrize("base", ["said by the spec", "said by the adapter"])
def test_an_adapter_is_quantized_by_a_spec(base: str, world: Path, tmp_path: Path) -> None:
    """In the words of TAO 7.2; the same numbers as of the model that PEFT has merged, and transformers loads them."""
    config = LoraConfig(r=2, target_modules=r".*language_model.*down_proj", init_lora_weights=False)
    adapted: Any = get_peft_model(from_pretrained(world / "model"), config)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    for file in (world / "model").glob("*token*"):
        shutil.copy(file, tmp_path / "merged")
    stated = str(world / "model") if base == "said by the spec" else ""
    spec = {
        "results_dir": str(tmp_path / "small"),
        "model": {"model_path": str(tmp_path / "adapter"), "enable_lora": True, "base_model_path": stated},
        "dataset": {"dataset_id": "", "dataset_split": "test[:1]", "annotation_path": "", "media_dir": ""},
        "quantize": {"quantization_scheme": "W4A16", "kv_precision": "bf16", "skip_test_generation": True},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert main(["quantize", "--spec", str(tmp_path / "spec.json"), "--group-size", "32"]) == 0
    words = ["--no-judge", "--scheme", "W4A16", "--group-size", "32"]
    assert main(["quantize", str(tmp_path / "merged"), *words, "-o", str(tmp_path / "other")]) == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("small", "other"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "small", dtype="auto")
    logits = loaded(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert logits.isfinite().all()
    assert {e["role"] for e in read_lineage(tmp_path / "small").inputs} == {"base", "adapter"}


def test_the_record_of_a_quantized_export_is_its_own(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The export's record stays with the export: the chain is whole, and the result can be a parent."""
    assert main(["export", str(world / "model"), "-o", str(tmp_path / "exported")]) == 0
    assert main(["quantize", str(tmp_path / "exported"), "--no-judge", "-o", str(tmp_path / "small")]) == 0
    record = read_lineage(tmp_path / "small")
    assert (record.action, [Path(e["path"]).name for e in record.inputs]) == ("quantize", ["exported"])
    capsys.readouterr()
    assert main(["lineage", str(tmp_path / "small")]) == 0
    said = capsys.readouterr().out
    assert [action in said for action in ("quantize ", "export ", "inputs are complete and unchanged")] == [True] * 3
    assert main(["infer", "--parent", str(tmp_path / "small"), "--prompt", "Is it?", "--max-new-tokens", "2"]) == 0


@pytest.mark.parametrize(
    ("before", "after", "figures"),
    [
        (["Yes.", "no", "no"], ["yes", "yes", "no"], {"questions": 3, "accuracy_before": 2 / 3, "accuracy_after": 1.0,
         "became_right": 1, "became_wrong": 0, "same_answers": 1 / 3, "task": "binary"}),
        (["yes", "yes", ""], ["no", "yes", ""], {"accuracy_before": 2 / 3, "accuracy_after": 1 / 3, "became_wrong": 1}),
        (["yes", None, "no"], ["yes", None, "maybe"], {"questions": 2, "left_out": 1, "accuracy_after": 0.5}),
    ],
)  # fmt: skip
def test_figures_of_both(before: list[Any], after: list[Any], figures: dict[str, Any]) -> None:
    asked = [(str(n), (say("user", "?"), say("assistant", text))) for n, text in enumerate(("yes", "yes", "no"))]

    def said(texts: list[Any]) -> TimedAnswers:
        return TimedAnswers([Answer(str(n), t or "", "" if t is not None else "bad") for n, t in enumerate(texts)], 1.5)

    found = compare_answers(asked, said(before), said(after))
    assert {name: found[name] for name in figures} == pytest.approx(figures)
    assert found["seconds_per_answer_after"] == 1.5 / found["questions"]


def test_no_answer_is_no_figure() -> None:
    nothing = TimedAnswers([Answer("a", error="unreadable: gone")], 1.0)
    with pytest.raises(UserError, match="none of the 1 questions could be answered: unreadable: gone"):
        compare_answers([("a", (say("user", "?"), say("assistant", "yes")))], nothing, nothing)
