"""`ChatProcessor`: a conversation to ids, labels and patches, by the files of a model folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config import Configurable
from worldsmith.data.conversations.chat_sample import IGNORED, ChatSample
from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.data.conversations.media.limits import has_limits
from worldsmith.data.conversations.media.media_processor import ImagePlan, MediaProcessor, VideoPlan
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.model_folder import load_from_folder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

KINDS = {"image": 1, "video": 2}
"""Token types of the placeholders; text is 0."""


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A conversation as tokens, before any of its pictures is decoded."""

    input_ids: np.ndarray
    labels: np.ndarray
    token_types: np.ndarray
    media: list[ImagePlan | VideoPlan]
    """In the order of their placeholders."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __str__(self) -> str:
        """What makes it long: the pictures and the text."""
        text = int((self.token_types == 0).sum())
        shown = [
            f"{'video' if isinstance(m, VideoPlan) else 'image'} {m.grid} of {m.tokens} tokens" for m in self.media
        ]
        return ", ".join([*shown, f"{text} of text"])


class ChatProcessor(Configurable):
    """Tokenizer, chat template and picture limits of a model folder at work.

    A placeholder of an image becomes as many as the image has tokens. That of a video becomes, for each time, the text
    `<1.5 seconds>` and the frame between its own vision tokens, or, for a network to which positions give the time
    (Qwen2.5-VL), as many as all its frames have. A text that holds a special token is refused.
    """

    class Config(Configurable.Config):
        media: MediaProcessor.Config = field(default_factory=MediaProcessor.Config)
        """Frames and sizes of images and videos."""
        outer_vision_tokens: bool = False
        """One more pair of vision tokens around all frames of a video, as transformers 5 has it; vLLM has none."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        """Raises DataError when the folder lacks a tokenizer, a chat template or, for a model that sees, the limits."""
        from transformers import AutoTokenizer

        from worldsmith.data.conversations.chat_template import ChatTemplate

        self.config = config
        self.folder = Path(folder)
        try:
            self.tokenizer: Any = load_from_folder(AutoTokenizer, self.folder)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder} has no tokenizer that can be loaded: {error}") from error
        if not self.tokenizer.is_fast:
            raise DataError(f"{self.folder} has no tokenizer.json, which says where in the text each token stands")
        self.template = ChatTemplate(self.tokenizer, self.folder)
        settings = model_settings(self.folder)
        sees = "vision_config" in settings or has_limits(self.folder)
        self.media = config.media.build(folder=self.folder) if sees else None
        if self.media is not None:
            self._find_vision_tokens(settings)
            if config.outer_vision_tokens and not self.media.videos.style.times_as_text:
                raise DataError(
                    f"outer_vision_tokens = true: {self.folder} is a {settings.get('model_type')}, whose chat template "
                    "writes one pair of vision tokens around a whole video; leave outer_vision_tokens out"
                )

    @property
    def patch(self) -> tuple[int, int]:
        """Pixels of a side of a patch, and its frames; (0, 0) of a model that does not see."""
        return (self.media.images.patch, self.media.images.temporal) if self.media is not None else (0, 0)

    def encode(self, turns: Sequence[Turn], *, key: str = "", position: int = 0) -> ChatSample:
        """The conversation for training: labels are the answers with their end tokens. Raises SampleError."""
        return self.finish(self.plan(turns), key=key, position=position)

    def prompt(self, turns: Sequence[Turn], *, key: str = "", position: int = 0) -> ChatSample:
        """The conversation with the header of the answer that is to be generated; no labels. Raises SampleError."""
        return self.finish(self.plan(turns, generation_prompt=True), key=key, position=position)

    def plan(self, turns: Sequence[Turn], *, generation_prompt: bool = False) -> ChatPlan:
        """The tokens of a conversation; of its pictures only headers are read. Raises SampleError."""
        import numpy as np

        media: list[ImagePlan | VideoPlan] = []
        for part in (part for turn in turns for part in turn.parts if part.kind != "text"):
            with naming(part.source):
                media.append(self._plan_medium(part))
        text = self.template.render(turns, generation_prompt=generation_prompt)
        if media:
            text = self._show_times(text, media)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = np.array(encoded["input_ids"], np.int64)
        self._check_special(text, ids)
        labels = np.full_like(ids, IGNORED)
        if not generation_prompt:
            offsets = np.array(encoded["offset_mapping"]).reshape(-1, 2)
            answers = self.template.answers(text)
            spoken = sum(turn.role == "assistant" for turn in turns)
            if len(answers) != spoken:
                raise SampleError("template", f"the chat template writes {len(answers)} of {spoken} answers")
            for start, end in answers:
                inside = (offsets[:, 0] >= start) & (offsets[:, 1] <= end)
                labels[inside] = ids[inside]
        types = np.zeros_like(ids)
        repeats = np.ones_like(ids)
        if media:
            for kind, token_id in self._pads.items():
                places = np.flatnonzero(ids == token_id)
                types[places] = KINDS[kind]
                repeats[places] = [n for m in media if kind_of(m) == kind for n in self._tokens_by_pad(m)]
        ids, labels, types = (np.repeat(values, repeats) for values in (ids, labels, types))
        return ChatPlan(ids, labels, types, media)

    def finish(self, plan: ChatPlan, *, key: str, position: int, read: bool = True) -> ChatSample:
        """Decodes the pictures, unless they are not to be `read`. Raises SampleError."""
        import torch

        shown: dict[str, Tensor | None] = {}
        for kind in KINDS:
            plans = [medium for medium in plan.media if kind_of(medium) == kind]
            patches = [self._read(medium) for medium in plans] if read else []
            shown[f"{kind}_patches"] = torch.cat(patches) if patches else None
            shown[f"{kind}_grids"] = torch.tensor([medium.grid for medium in plans]) if plans else None
        seconds = [medium.seconds for medium in plan.media if isinstance(medium, VideoPlan)]
        shown["video_seconds"] = torch.tensor(seconds) if seconds else None
        ids, labels, types = (torch.from_numpy(v) for v in (plan.input_ids, plan.labels, plan.token_types))
        return ChatSample(key, position, len(plan), ids, labels, types, **shown)

    def _read(self, medium: ImagePlan | VideoPlan) -> Tensor:
        import torch

        assert self.media is not None
        with naming(medium.source):
            return torch.from_numpy(self.media.read(medium))

    def _plan_medium(self, part: Part) -> ImagePlan | VideoPlan:
        if self.media is None:
            raise SampleError("text_only_model", f"the model in {self.folder} takes no images or videos")
        if part.kind == "image":
            return self.media.plan_image(part.source, part.resized)
        if isinstance(part.source, bytes):
            raise SampleError("bad_record", "a video must be a file")
        return self.media.plan_video(part.source, part.fps, part.resized)

    def _show_times(self, text: str, media: Sequence[ImagePlan | VideoPlan]) -> str:
        """The text with, for each video, its times and a placeholder for each of them. Raises SampleError.

        For a network to which positions give the time it is the text as it is.
        """
        assert self.media is not None
        image, video, start, end = self._vision_tokens
        found = re.findall(f"{re.escape(image)}|{re.escape(video)}", text)
        if found != [video if isinstance(medium, VideoPlan) else image for medium in media]:
            raise SampleError("template", f"the chat template shows {len(found)} of {len(media)} images and videos")
        if not self.media.videos.style.times_as_text:
            return text
        outer = (start, end) if self.config.outer_vision_tokens else ("", "")
        videos = iter([medium for medium in media if isinstance(medium, VideoPlan)])

        def written(_: re.Match[str]) -> str:
            frames = [f"<{time:.1f} seconds>{start}{video}{end}" for time in next(videos).times]
            return "".join([outer[0], *frames, outer[1]])

        return re.sub(f"(?:{re.escape(start)})?{re.escape(video)}(?:{re.escape(end)})?", written, text)

    def _tokens_by_pad(self, medium: ImagePlan | VideoPlan) -> list[int]:
        """Tokens of each placeholder in the text: one of an image, one of each time of a video, or of all of it."""
        assert self.media is not None
        if isinstance(medium, VideoPlan) and self.media.videos.style.times_as_text:
            return [medium.frame_tokens] * len(medium.times)
        return [medium.tokens]

    def _check_special(self, text: str, ids: np.ndarray) -> None:
        """Raises SampleError when the tokenizer finds other special tokens than the template has written."""
        expected = self.tokenizer.convert_tokens_to_ids(self.template.special.findall(text))
        special = set(self.tokenizer.convert_tokens_to_ids(self.template.special_tokens))
        if [token for token in ids.tolist() if token in special] != expected:
            raise SampleError("special_token", "a text turns into a special token of the chat template; remove it")

    def _find_vision_tokens(self, settings: dict[str, Any]) -> None:
        names = ("image_token", "video_token", "vision_start_token", "vision_end_token")
        usual = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
        self._vision_tokens = [getattr(self.tokenizer, name, None) or token for name, token in zip(names, usual)]
        ids = self.tokenizer.convert_tokens_to_ids(self._vision_tokens)
        for name, token, token_id in zip(names, self._vision_tokens, ids):
            stated = settings.get(f"{name}_id", token_id)
            if token not in self.template.special_tokens or stated != token_id:
                raise DataError(
                    f"{self.folder}: the tokenizer has id {token_id} for '{token}' (special: "
                    f"{token in self.template.special_tokens}), config.json has {name}_id {stated}; the files are not "
                    "of one model"
                )
        self._pads = {"image": ids[0], "video": ids[1]}


@contextmanager
def naming(source: str | bytes) -> Iterator[None]:
    """Adds to a SampleError which file it is about."""
    try:
        yield
    except SampleError as error:
        name = source if isinstance(source, str) and not source.startswith("data:") else "its image"
        raise SampleError(error.reason, f"{name}: {error.detail}") from None


def kind_of(medium: ImagePlan | VideoPlan) -> str:
    return "video" if isinstance(medium, VideoPlan) else "image"


def model_settings(folder: Path) -> dict[str, Any]:
    """config.json, where there is one."""
    from worldsmith.files.json_file import read_json_object

    return read_json_object(folder / "config.json") if (folder / "config.json").is_file() else {}
