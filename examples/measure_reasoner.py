"""Measures an exported reasoner on the held-out falling objects, with nothing but transformers to run the model.

    python examples/measure_reasoner.py EXPORT DATASET [--out FOLDER]

EXPORT is a Hugging Face folder, DATASET one that `worldsmith dataset falling-objects` made. Answers are generated
greedily and compared with the truth as `worldsmith evaluate` does it: yes or no is the only one of these words that is
there, or the first word; a score is the first digit from 1 to 5 that stands alone. Questions are asked once more with
the frames of another clip: an accuracy near 0.5 then shows that the answers come from looking. FOLDER (default: EXPORT)
receives answers.json and summary.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen3VLForConditionalGeneration

from worldsmith.data.conversations.chat_processor import ChatProcessor, ChatSample
from worldsmith.data.conversations.conversation import Turn, question
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.evaluation.answers.accuracy import measure_classes, measure_ratings
from worldsmith.evaluation.answers.parse_answers import YES_NO, parse_yes_no

BATCH = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    judge = Judge(args.export)
    root = str(args.dataset / "videophy2_val")
    questions = read(LlavaDataset.Config(path=root).build())
    scores = read(ManifestDataset.Config(path=root).build())
    clips, each = len(scores), len(questions) // len(scores)
    swapped = [
        (key, other_frames(turns, scores[(index // each + clips // 2) % clips][1]))
        for index, (key, turns) in enumerate(questions)
    ]

    found = {"questions": judge.answer(questions), "swapped": judge.answer(swapped), "scores": judge.answer(scores)}
    summary = yes_no(questions, found["questions"]) | plausibility(scores, found["scores"])
    summary["yes_no_accuracy_with_frames_of_another_clip"] = yes_no(questions, found["swapped"])["yes_no_accuracy"]
    out = args.out or args.export
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    asked = {"questions": questions, "swapped": questions, "scores": scores}
    listing = {
        kind: [
            {"id": key, "asked": turns[0].text.strip(), "truth": truth(turns), "answer": answer}
            for (key, turns), answer in zip(asked[kind], answers)
        ]
        for kind, answers in found.items()
    }
    (out / "answers.json").write_text(json.dumps(listing, indent=1) + "\n")
    for name, value in summary.items():
        print(f"{name.replace('_', ' ')}: {value}")
    print(
        f"yes/no accuracy {summary['yes_no_accuracy']:.2f} · plausibility within one "
        f"{summary['within_one']:.2f}, Pearson {summary['pearson']:.2f}"
    )


class Judge:
    """The exported model, and what turns a conversation into its inputs."""

    def __init__(self, folder: Path) -> None:
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()
        self.processor = ChatProcessor.Config().build(folder=folder)

    def answer(self, asked: list[tuple[str, tuple[Turn, ...]]]) -> list[str]:
        """What the model says to each conversation without its last answer."""
        prompts = [self.processor.prompt(question(turns)) for _, turns in asked]
        said = []
        for start in range(0, len(prompts), BATCH):
            said += self.generate(prompts[start : start + BATCH])
        return said

    @torch.no_grad()
    def generate(self, prompts: list[ChatSample]) -> list[str]:
        """Greedy, in one batch, padded on the left."""
        length = max(prompt.num_tokens for prompt in prompts)
        rows = {name: torch.zeros(len(prompts), length, dtype=torch.long) for name in ("ids", "mask", "types")}
        rows["ids"] += self.processor.tokenizer.pad_token_id
        for row, prompt in enumerate(prompts):
            rows["ids"][row, -prompt.num_tokens :] = prompt.input_ids
            rows["mask"][row, -prompt.num_tokens :] = 1
            rows["types"][row, -prompt.num_tokens :] = prompt.token_types
        out = self.model.generate(
            input_ids=rows["ids"],
            attention_mask=rows["mask"],
            mm_token_type_ids=rows["types"],
            pixel_values_videos=self.processor.media.normalize(torch.cat([p.video_patches for p in prompts]), "video"),
            video_grid_thw=torch.cat([p.video_grids for p in prompts]),
            max_new_tokens=4,
            do_sample=False,
        )
        return self.processor.tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)


def read(dataset) -> list[tuple[str, tuple[Turn, ...]]]:
    """(key, conversation) of every record."""
    return [(dataset.place(index)[0], dataset.turns(index)) for index in range(len(dataset))]


def other_frames(turns: tuple[Turn, ...], source: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The conversation with the video of another one."""
    (video,) = (part for part in source[0].parts if part.kind == "video")
    parts = tuple(video if part.kind == "video" else part for part in turns[0].parts)
    return (replace(turns[0], parts=parts), *turns[1:])


def truth(turns: tuple[Turn, ...]) -> str:
    return turns[-1].text.strip()


def yes_no(asked: list[tuple[str, tuple[Turn, ...]]], answers: list[str]) -> dict[str, float]:
    """Accuracy over all questions, and of each topic, which the keys end with."""
    pairs = defaultdict(list)
    for (key, turns), answer in zip(asked, answers):
        for name in ("yes_no_accuracy", f"yes_no_accuracy_{key.rpartition('-')[2]}"):
            pairs[name].append((parse_yes_no(answer), truth(turns)))
    return {name: round(measure_classes(*zip(*found), YES_NO)["accuracy"], 3) for name, found in pairs.items()}


def plausibility(asked: list[tuple[str, tuple[Turn, ...]]], answers: list[str]) -> dict[str, float]:
    """Accuracy, share within one, and Pearson's correlation where an answer holds a score; others are wrong."""
    found = measure_ratings(answers, [truth(turns) for _, turns in asked])
    return {
        "accuracy": round(found["accuracy"], 3),
        "within_one": round(found["within_one"], 3),
        "pearson": round(found["pearson_correlation"] or 0.0, 3),
        "answers_without_a_score": found["unparsed"],
    }


if __name__ == "__main__":
    main()
