"""Is a training step of a reasoner faster, and smaller, than the same batch padded through transformers?

Forward and backward (float32) over conversations of mixed length, 30 to 400 tokens, of which 2 to 16 are supervised, on
a Qwen3-VL of hidden size 128 with 4 layers and a vocabulary of 32,000. Ours has all of them in one row and logits for
supervised positions; transformers, as its Trainer gives it a batch, a row for each, padded to the longest, and logits
for all positions. The two sides take turns. Both must give the same gradients (1e-4 of the largest value of each
tensor); the program fails otherwise. Goal: at least 1.5 times the supervised tokens per second.

    python benchmarks/reasoner_step.py [--samples 16] [--rounds 5] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
from collections.abc import Callable

import psutil
import torch
from side_by_side import medians, relative_difference
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.chat_processor import IGNORED, ChatSample
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, FreezeConfig, PolicyConfig
from worldsmith.families.vision_language.task import VisionLanguageTask
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.step import StepInputs, forward_backward

GOAL = 1.5
TOLERANCE = 1e-4


def make_samples(count: int) -> list[ChatSample]:
    """Lengths between 30 and 400, each as likely as its double."""
    stream = torch.Generator().manual_seed(0)
    samples = []
    for position in range(count):
        length = round(30 * math.exp(math.log(400 / 30) * float(torch.rand((), generator=stream))))
        ids = torch.randint(0, 30_000, (length,), generator=stream)
        labels = torch.full_like(ids, IGNORED)
        labels[-2 - position % 15 :] = ids[-2 - position % 15 :]
        samples.append(ChatSample(str(position), position, length, ids, labels, torch.zeros_like(ids)))
    return samples


def make_ways(
    samples: list[ChatSample], layers: int
) -> tuple[dict[str, Callable[[], None]], dict[str, torch.nn.Module]]:
    """A step of each side, and their networks, which have the same weights. The vision encoder is frozen."""
    text = {"hidden_size": 128, "num_hidden_layers": layers, "intermediate_size": 384, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 32_000}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5]}}
    vision = {"hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 128}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=31_000, video_token_id=31_001)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        policy = PolicyConfig(
            backbone=BackboneConfig(model_name=folder), freeze=FreezeConfig(frozen_params=[r"model\.visual\."])
        )
        model = VisionLanguageModel.Config(precision="float32", policy=policy).build(seed=0)
    plain = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.network.state_dict())
    plain.model.visual.requires_grad_(False)
    task = VisionLanguageTask(
        model=model, objective=NextToken.Config(), data=ChatLoader.Config(max_samples_per_batch=1)
    )
    ids = pad_sequence([sample.input_ids for sample in samples], batch_first=True)
    labels = pad_sequence([sample.labels for sample in samples], batch_first=True, padding_value=IGNORED)
    mask = pad_sequence([torch.ones_like(sample.input_ids) for sample in samples], batch_first=True)

    def packed() -> None:
        model.network.zero_grad()
        forward_backward(StepInputs(0, [samples]), task, seed=0)

    def padded() -> None:
        plain.zero_grad()
        plain(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()

    return {"packed": packed, "padded": padded}, {"packed": model.network, "padded": plain}


def gradients(network: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def growth(way: Callable[[], None]) -> int:
    """Bytes by which the process grows at most while a step runs; looked at every few milliseconds."""
    process, done = psutil.Process(), threading.Event()
    sizes = [process.memory_info().rss]

    def watch() -> None:
        while not done.wait(0.003):
            sizes.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    way()
    done.set()
    watcher.join()
    return max(sizes) - sizes[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16, help="conversations in a batch")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="1 layer and one turn: checks the program, not the claim")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    layers = 1 if arguments.quick else 4
    arguments.rounds = 1 if arguments.quick else arguments.rounds
    samples = make_samples(arguments.samples)
    ways, networks = make_ways(samples, layers)
    peaks = {name: growth(way) / 2**20 for name, way in ways.items()}
    seconds = medians(ways, rounds=arguments.rounds)
    difference = relative_difference(gradients(networks["packed"]), gradients(networks["padded"]))
    supervised = sum(sample.num_supervised for sample in samples)
    tokens, rows = sum(sample.num_tokens for sample in samples), max(sample.num_tokens for sample in samples)
    print(f"{len(samples)} conversations, {tokens} tokens ({rows * len(samples)} padded), {supervised} supervised")
    for name, taken in seconds.items():
        speed = f"{1e3 * taken:7.1f} ms, {supervised / taken:6.1f} supervised tokens/s"
        print(f"{name:>8}: {speed}, grows by {peaks[name]:.0f} MiB in a step")
    ratio = seconds["padded"] / seconds["packed"]
    print(f"ratio {ratio:.2f} (goal: at least {GOAL})")
    print(f"largest difference of a gradient, relative to its tensor's largest value: {difference:.1e}")
    if difference > TOLERANCE:
        print(f"the gradients differ by more than {TOLERANCE:.0e}")
        return 1
    return 0 if ratio >= GOAL or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
