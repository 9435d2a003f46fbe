"""Does a reasoner train faster here than with transformers' Trainer and with TRL's SFTTrainer?

One pass over conversations of mixed length, on one Qwen3-VL with random weights: with text alone, and with an image in
two of three. Every side is its real trainer with AdamW, float32, the same conversations, and about as many tokens in a
step. Each has the best that it offers on this machine:

    worldsmith             packs from a pool, images and text in one row
    Trainer, by length     batches of samples of about the same length, padded
    Trainer, flattened     samples in one row (DataCollatorWithFlattening); text alone: it gives no axes to images
    SFTTrainer, packed     best-fit packs in one row; text alone: TRL refuses packing for images
    SFTTrainer, by length  the same as Trainer's, with logits for supervised tokens alone; with images

Texts are tokens before the clock starts for the peers, while worldsmith makes them in its loader. Images are read by
every side as it trains: transformers' processor in its PIL form, since torchvision is not used. The learning rate is 0,
so that the mean loss over the pass must be the same on all sides, as must be the number of supervised tokens; the
program fails otherwise. The sides take turns. Goal: at least 1.5 times the supervised tokens per second of the better
peer. A peer that is not installed is left out: for TRL make an environment of its own,

    python -m venv trl && trl/bin/pip install -c constraints.txt -e . datasets trl
    trl/bin/python benchmarks/reasoner_peers.py [--samples 32] [--rounds 3] [--threads 1] [--only text] [--quick]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mixed_chats import make_chats, make_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, AutoTokenizer

from worldsmith.config.sections import JobConfig
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, PolicyConfig
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig
from worldsmith.training.trainer import Trainer

GOAL = 1.5
TOLERANCE = 1e-5
TOKENS = 2048
"""In a step, at most for packs, on average for batches of samples."""


@dataclass
class Pass:
    """What a side did in one pass."""

    start: float = field(default_factory=time.perf_counter)
    """Before the first batch is made."""
    end: float = 0.0
    """When the last step was done."""
    supervised: list[int] = field(default_factory=list)
    """Tokens of each step."""
    losses: list[float] = field(default_factory=list)
    """Mean loss of each step."""

    def note(self, supervised: int, loss: float) -> None:
        self.supervised.append(supervised)
        self.losses.append(loss)

    @property
    def speed(self) -> float:
        """Supervised tokens per second."""
        return sum(self.supervised) / (self.end - self.start)

    @property
    def loss(self) -> float:
        """Mean over all supervised tokens."""
        return sum(map(math.prod, zip(self.losses, self.supervised))) / sum(self.supervised)


def worldsmith_side(
    model: Path, data: Path, folder: Path, *, threads: int
) -> tuple[list[ChatSample], Callable[[], Pass]]:
    """The conversations, and a pass over them."""
    policy = PolicyConfig(backbone=BackboneConfig(model_name=str(model)))
    network = VisionLanguageModel.Config(precision="float32", policy=policy, ema=PowerEMA.Config(enabled=False))
    config = Trainer.Config(
        job=JobConfig(task="vlm", project="benchmarks", group="reasoner", name="pass"),
        model=ModelSpec(name="vision_language", config=network),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=0.0),
        trainer=LoopConfig(grad_accum_iter=1, cpu_threads=threads, callbacks={}),
        dataloader_train=ChatLoader.Config(
            dataset=LlavaDataset.Config(path=str(data)), max_sequence_length=TOKENS + 1, packer="pool", lookahead=32
        ),
    )
    trainer = Trainer(config, run_folder=folder)
    packs = list(trainer.state.loader.first_pass())

    def run() -> Pass:
        done, batches = Pass(), trainer.state.loader.first_pass()
        for _ in packs:
            step = trainer.training_step(batches)
            done.note(int(step.weight), step.loss)
        done.end = time.perf_counter()
        return done

    return [sample for pack in packs for sample in pack], run


def peer(kind: Any, **settings: Any) -> Callable[[], Pass]:
    """A pass of this trainer of transformers."""
    from transformers import PrinterCallback, ProgressCallback, TrainerCallback

    class Watched(kind):
        done: Pass

        def compute_loss(self, model: Any, inputs: Any, *words: Any, **settings: Any) -> Any:
            supervised = int((inputs["labels"][:, 1:] != IGNORED).sum())
            loss = super().compute_loss(model, inputs, *words, **settings)
            self.done.note(supervised, float(loss.detach()))
            return loss

        def run(self) -> Pass:
            self.done = Pass()
            self.train()
            return self.done

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            trainer.done.start = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            trainer.done.end = time.perf_counter()

    trainer = Watched(**settings)
    for silent in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(silent)
    trainer.add_callback(Clock)
    run: Callable[[], Pass] = trainer.run
    return run


def peer_sides(
    model: Path, samples: list[ChatSample], records: list[dict[str, Any]], data: Path, folder: Path, *, threads: int
) -> dict[str, Callable[[], Pass]]:
    """What is installed. Raises nothing for what is not."""
    import datasets
    from transformers import DataCollatorWithFlattening, TrainingArguments
    from transformers import Trainer as PlainTrainer

    images = any("image" in record for record in records)
    lengths = {sample.key: sample.num_tokens for sample in samples}
    common = {
        "output_dir": str(folder / "peer"), "num_train_epochs": 1, "learning_rate": 0.0, "weight_decay": 0.0,
        "max_grad_norm": 0.0, "bf16": False, "use_cpu": True, "report_to": [],
        "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "seed": 0, "optim": "adamw_torch_fused",
        "per_device_train_batch_size": max(1, round(TOKENS * len(samples) / sum(lengths.values()))),
        "dataloader_pin_memory": False,
    }  # fmt: skip
    grouped: dict[str, Any] = {"train_sampling_strategy": "group_by_length", "length_column_name": "length"}

    def network() -> Any:
        found = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        found.config.text_config.use_cache = False  # with a cache samples in one row would see each other
        return found

    def side(kind: Any, arguments: Any, **others: Any) -> Callable[[], Pass]:
        run = peer(kind, model=network(), args=arguments, train_dataset=rows, **others)
        torch.set_num_threads(threads)
        return run

    tokenizer = AutoTokenizer.from_pretrained(model)
    sides = {}
    if images:
        rows = chats_of(records, data, lengths)
        processor = image_processor(model, tokenizer)
        collate = partial(read_chats, processor=processor, template=labelled(tokenizer))
        grouped["remove_unused_columns"] = False
        arguments = TrainingArguments(**common, **grouped)
        sides["Trainer, by length"] = side(PlainTrainer, arguments, data_collator=collate)
    else:
        rows = datasets.Dataset.from_list(
            [{"input_ids": s.input_ids.tolist(), "labels": s.labels.tolist(), "length": s.num_tokens} for s in samples]
        )
        padded, flat = partial(pad, pad_token=tokenizer.pad_token_id), DataCollatorWithFlattening()
        sides["Trainer, by length"] = side(PlainTrainer, TrainingArguments(**common, **grouped), data_collator=padded)
        sides["Trainer, flattened"] = side(PlainTrainer, TrainingArguments(**common), data_collator=flat)
    if find_spec("trl") is None:
        print("TRL is not installed: left out")
        return sides
    from trl import SFTConfig, SFTTrainer

    if images:
        settings = SFTConfig(
            **common, **grouped, gradient_checkpointing=False, max_length=None, assistant_only_loss=True
        )
        processor.chat_template = labelled(tokenizer)
        sides["SFTTrainer, by length"] = side(SFTTrainer, settings, processing_class=processor)
    else:
        common["per_device_train_batch_size"] = 1  # a pack
        settings = SFTConfig(**common, gradient_checkpointing=False, max_length=TOKENS, packing=True)
        sides["SFTTrainer, packed"] = side(SFTTrainer, settings, processing_class=tokenizer)
    return sides


def pad(rows: list[dict[str, list[int]]], *, pad_token: int) -> dict[str, torch.Tensor]:
    """A row for each sample, up to the longest."""
    ids, labels = ([torch.tensor(row[name]) for row in rows] for name in ("input_ids", "labels"))
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_token),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }


def chats_of(records: list[dict[str, Any]], data: Path, lengths: dict[str, int]) -> Any:
    """The conversations as TRL takes them, with images that are decoded when they are asked for."""
    import datasets

    roles = {"human": "user", "gpt": "assistant"}
    rows = [
        {
            "messages": [{"role": roles[turn["from"]], "content": turn["value"]} for turn in record["conversations"]],
            "images": [str(data / record["image"])] if "image" in record else [],
            "length": lengths[record["id"]],
        }
        for record in records
    ]
    return datasets.Dataset.from_list(rows).cast_column("images", datasets.List(datasets.Image()))


def read_chats(rows: list[dict[str, Any]], *, processor: Any, template: str) -> dict[str, torch.Tensor]:
    """The usual collator: the processor at work, and labels where the template marks what the assistant says."""
    messages = [
        [
            {
                **turn,
                "content": [
                    *[{"type": "image", "image": image} for image in shown],
                    {"type": "text", "text": turn["content"]},
                ],
            }
            for turn, shown in zip(row["messages"], (row["images"], []))
        ]
        for row in rows
    ]
    batch: dict[str, torch.Tensor] = processor.apply_chat_template(
        messages,
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        return_assistant_tokens_mask=True,
        processor_kwargs={"padding": True, "padding_side": "right"},
    )
    batch["labels"] = batch["input_ids"].where(batch.pop("assistant_masks").bool(), IGNORED)
    return batch


def image_processor(model: Path, tokenizer: Any) -> Any:
    """transformers' Qwen3-VL processor in its PIL form; without torchvision there is none for videos."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    class ImageProcessor(Qwen3VLProcessor):
        def check_argument_for_proper_class(self, *_: Any) -> None:
            """The table of classes lacks those that need torchvision."""

    limits = json.loads((model / "preprocessor_config.json").read_text())
    return ImageProcessor(Qwen2VLImageProcessorPil(**limits), tokenizer, None, chat_template=tokenizer.chat_template)


def labelled(tokenizer: Any) -> str:
    """The shipped template, with marks around what the assistant says."""
    template, end = tokenizer.chat_template, "{{- '<|im_end|>\\n' }}"
    before, _, after = template.partition(end)
    head, start, content = before.partition("{%- if message.content is string %}")
    marked = "{% generation %}" + start + content + "{{- '<|im_end|>' }}{% endgeneration %}"
    assert start, after
    return (
        head + "{%- if message.role == 'assistant' %}" + marked + "{{- '\\n' }}"
        "{%- else %}" + start + content + end + "{%- endif %}" + after
    )


def compare(model: Path, folder: Path, *, images: bool, count: int, rounds: int, threads: int) -> float | None:
    """Measures all sides on one set; the ratio to the better peer. None: the sides did not do the same."""
    data = folder / "data"
    data.mkdir(parents=True)
    records = make_chats(data, count, images=images)
    samples, ours = worldsmith_side(model, data, folder / "run", threads=threads)
    sides = {"worldsmith": ours, **peer_sides(model, samples, records, data, folder, threads=threads)}
    passes: dict[str, list[Pass]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            done = side()
            if turn or not rounds:
                passes[name].append(done)
    lengths = sorted(sample.num_tokens for sample in samples)
    supervised = sum(sample.num_supervised for sample in samples)
    print(
        f"{'text and images' if images else 'text'}: {count} conversations of {lengths[0]} to {lengths[-1]} tokens, ",
        end="",
    )
    print(f"{sum(lengths)} in all, {supervised} supervised")
    speeds = {name: statistics.median(done.speed for done in all_) for name, all_ in passes.items()}
    for name, speed in speeds.items():
        last = passes[name][-1]
        print(f"{name:>22}: {speed:7.1f} supervised tokens/s, {len(last.losses):3} steps, mean loss {last.loss:.6f}")
    peer = max((name for name in sides if name != "worldsmith"), key=lambda name: speeds[name])
    ratio = speeds["worldsmith"] / speeds[peer]
    print(f"ratio {ratio:.2f} to {peer} (goal: at least {GOAL})")
    every = [done for all_ in passes.values() for done in all_]
    if {sum(done.supervised) for done in every} != {supervised}:
        print("the sides supervise other tokens:", {n: sum(all_[0].supervised) for n, all_ in passes.items()})
        return None
    if max(abs(done.loss / ours_loss - 1) for done in every for ours_loss in [every[0].loss]) > TOLERANCE:
        print("the mean losses differ")
        return None
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=32, help="conversations in a pass")
    parser.add_argument("--rounds", type=int, default=3, help="passes of each side, after one that warms up")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--only", choices=("text", "images"), help="one of the two sets")
    parser.add_argument("--quick", action="store_true", help="1 layer, one pass: checks the program, not the claim")
    arguments = parser.parse_args()
    rounds, layers = (0, 1) if arguments.quick else (arguments.rounds, 4)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        make_model(Path(name) / "model", layers=layers)
        for kind in [arguments.only] if arguments.only else ["text", "images"]:
            ratios.append(
                compare(
                    Path(name) / "model",
                    Path(name) / kind,
                    images=kind == "images",
                    count=arguments.samples,
                    rounds=rounds,
                    threads=arguments.threads,
                )
            )
    if None in ratios:
        return 1
    return 0 if arguments.quick or min(ratios) >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
