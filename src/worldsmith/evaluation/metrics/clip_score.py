"""CLIP score: similarity of frames and their caption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metrics.base import Output, SampleMetric, Values
from worldsmith.evaluation.pretrained import PretrainedWeights, load_network, video_frames
from worldsmith.files.untrusted_folder import load_from_folder

if TYPE_CHECKING:
    from torch import Tensor

FRAMES_AT_ONCE = 32


class ClipScore(SampleMetric):
    """CLIP score of each video with its caption, computed with the CLIP model in the folder `config.clip`."""

    outputs = {
        "clip_score": Output(
            "0 to 100",
            "100 · max(cosine, 0) of caption and frame, mean over frames (CLIPScore, Hessel et al. 2021)",
            "higher",
        )
    }
    weights = PretrainedWeights("clip", "openai/clip-vit-large-patch14", "clip")
    measures_real = True

    class Config(SampleMetric.Config):
        clip: str | None = None
        """Folder of a CLIP model for the evaluator clip, such as openai/clip-vit-large-patch14."""

    def __init__(self, config: Config, *, device: str = "cpu") -> None:
        from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

        super().__init__(config, device=device)
        folder = Path(str(config.clip))
        self.model = load_network(CLIPModel, folder, device)
        self.tokenizer = load_from_folder(AutoTokenizer, folder)
        self.processor = load_from_folder(CLIPImageProcessorPil, folder)
        self.limit: int = self.model.config.text_config.max_position_embeddings
        self.truncated: set[str] = set()
        """Captions that were truncated because they have more tokens than CLIP accepts."""

    def measure(self, sample: GeneratedVideo) -> Values:
        return {"clip_score": self.score(str(sample.args["prompt"]), sample.video)}

    def score(self, prompt: str, video: Tensor) -> float:
        """Computes 100 · max(cosine similarity of frame and caption, 0), as mean over the frames.

        Args:
            prompt: The caption; truncated to the number of tokens of CLIP.
            video: uint8 [3, T, H, W].

        Source:
            Hessel et al. 2021, with the factor 100 of torchmetrics.
        """
        import torch

        ids = self.tokenizer(prompt, return_tensors="pt", truncation=True, max_length=self.limit)["input_ids"]
        if len(self.tokenizer(prompt, verbose=False)["input_ids"]) > self.limit:
            self.truncated.add(prompt)
        scores = []
        with torch.inference_mode():
            for frames in video.split(FRAMES_AT_ONCE, dim=1):
                pixels = self.processor(video_frames(frames), return_tensors="pt")["pixel_values"]
                found = self.model(input_ids=ids.to(self.model.device), pixel_values=pixels.to(self.model.device))
                scores.append((100 * found.image_embeds @ found.text_embeds[0]).clamp(min=0))
        return float(torch.cat(scores).double().mean())

    def notes(self) -> list[str]:
        count = len(self.truncated)
        return [f"{count} captions were truncated to CLIP's {self.limit} tokens"] if count else []
