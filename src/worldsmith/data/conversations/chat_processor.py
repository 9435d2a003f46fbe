"""`ChatProcessor`: encodes conversations as IDs, labels and patches, with the files of a model folder.

`ChatTemplate` renders the text with the chat template of the folder, and finds the answers of the assistant in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config import Configurable
from worldsmith.data.conversations.conversation import Part, Turn, say
from worldsmith.data.conversations.media.limits import has_limits
from worldsmith.data.conversations.media.media_processor import ImagePlan, MediaProcessor, VideoPlan
from worldsmith.data.stream.errors import DataError, SampleError, check_text, prefixing
from worldsmith.data.stream.sample_maker import ThroughPipe
from worldsmith.files.json_file import read_optional_json
from worldsmith.files.untrusted_folder import load_from_folder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

KINDS = {"image": 1, "video": 2}
"""Token types of the placeholders; text is 0."""
IGNORED = -100
"""The label of a token that is not supervised."""
ASKED, ANSWERED = ("FIRSTQUESTION", "SECONDQUESTION"), ("FIRSTANSWER", "SECONDANSWER")
"""Texts of a probe conversation, by which the parts of a chat template's output are located."""


class ChatProcessor(Configurable):
    """Encodes conversations with the tokenizer, the chat template and the image limits of a model folder.

    The placeholder of an image is repeated once per token of the image. If the network gets times as text (Qwen3-VL),
    the placeholder of a video is replaced, for each temporal patch, by a timestamp such as `<1.5 seconds>` and one
    placeholder per token of this patch. If the network gets times from position IDs (Qwen2.5-VL), the placeholder is
    repeated once per token of the video. A conversation whose text contains a special token is rejected.
    """

    class Config(Configurable.Config):
        media: MediaProcessor.Config = field(default_factory=MediaProcessor.Config)
        """Frames and sizes of images and videos."""
        outer_vision_tokens: bool = False
        """Whether all frames of a video are enclosed in an additional pair of vision tokens, as in transformers 5;
        vLLM does not add this pair."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        """Loads the tokenizer, the chat template and the image limits of a model folder.

        Raises:
            DataError: If the folder has no tokenizer, no chat template or, for a vision model, no limits.
        """
        from transformers import AutoTokenizer

        self.config = config
        self.folder = Path(folder)
        try:
            self.tokenizer: Any = load_from_folder(AutoTokenizer, self.folder)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder}: the tokenizer cannot be loaded: {error}") from error
        if not self.tokenizer.is_fast:
            raise DataError(f"{self.folder} has no tokenizer.json, which is needed to locate each token in the text")
        self.template = ChatTemplate(self.tokenizer, self.folder)
        settings = read_optional_json(self.folder / "config.json")
        sees = "vision_config" in settings or has_limits(self.folder)
        self.media = config.media.build(folder=self.folder) if sees else None
        if self.media is not None:
            self._find_vision_tokens(settings)
            if config.outer_vision_tokens and not self.media.videos.style.times_as_text:
                raise DataError(
                    f"outer_vision_tokens = true: {self.folder} is a {settings.get('model_type')}, whose chat "
                    "template already writes one pair of vision tokens around a video; omit outer_vision_tokens"
                )

    @property
    def patch(self) -> tuple[int, int]:
        """Patch size as (pixels per side, frames); (0, 0) for a text-only model."""
        return (self.media.images.patch, self.media.images.temporal) if self.media is not None else (0, 0)

    def encode(self, turns: Sequence[Turn], *, key: str = "", position: int = 0) -> ChatSample:
        """Encodes a conversation for training; raises SampleError if it cannot be used.

        Labels are the tokens of all answers and their end tokens.

        Args:
            turns: Turns of the conversation.
            key: Key of the sample.
            position: Position of the sample in the data stream.
        """
        return self.finish(self.plan(turns), key=key, position=position)

    def prompt(self, turns: Sequence[Turn], *, key: str = "", position: int = 0) -> ChatSample:
        """Encodes a conversation as a prompt, without labels; it ends with the header of the answer to generate.

        Args:
            turns: Turns of the conversation.
            key: Key of the sample.
            position: Position of the sample in the data stream.

        Raises:
            SampleError: If the conversation cannot be used.
        """
        return self.finish(self.plan(turns, generation_prompt=True), key=key, position=position)

    def plan(self, turns: Sequence[Turn], *, generation_prompt: bool = False) -> ChatPlan:
        """Tokenizes a conversation and determines the sizes and tokens of its images and videos, without decoding them.

        Only image headers and one frame of each video are read.

        Args:
            turns: Turns of the conversation.
            generation_prompt: Append the header of the answer to generate, and set no labels.

        Raises:
            SampleError: If the conversation cannot be used.
        """
        import numpy as np

        media: list[ImagePlan | VideoPlan] = []
        for part in (part for turn in turns for part in turn.parts if part.kind != "text"):
            with prefixing(source_name(part.source)):
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
                raise SampleError("template", f"the chat template outputs {len(answers)} of {spoken} answers")
            for start, end in answers:
                inside = (offsets[:, 0] >= start) & (offsets[:, 1] <= end)
                labels[inside] = ids[inside]
        types = np.zeros_like(ids)
        repeats = np.ones_like(ids)
        if media:
            for kind, token_id in self._pads.items():
                places = np.flatnonzero(ids == token_id)
                types[places] = KINDS[kind]
                repeats[places] = [n for m in media if media_kind(m) == kind for n in self._tokens_by_pad(m)]
        ids, labels, types = (np.repeat(values, repeats) for values in (ids, labels, types))
        return ChatPlan(ids, labels, types, media)

    def finish(self, plan: ChatPlan, *, key: str, position: int, read: bool = True) -> ChatSample:
        """Builds the sample of a planned conversation.

        Args:
            plan: Tokens and media plans of the conversation, from `plan`.
            key: Key of the sample.
            position: Position in the data stream.
            read: Decode images and videos; False: the sample has no patches.

        Raises:
            SampleError: If media are not readable.
        """
        import torch

        shown: dict[str, Tensor | None] = {}
        for kind in KINDS:
            plans = [medium for medium in plan.media if media_kind(medium) == kind]
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
        with prefixing(source_name(medium.source)):
            return torch.from_numpy(self.media.read(medium))

    def _plan_medium(self, part: Part) -> ImagePlan | VideoPlan:
        if self.media is None:
            raise SampleError("text_only_model", f"the model in {self.folder} supports no images or videos")
        if part.kind == "image":
            return self.media.plan_image(part.source, part.resized)
        if isinstance(part.source, bytes):
            raise SampleError("bad_record", "a video must be a path, found bytes")
        return self.media.plan_video(part.source, part.fps, part.resized, part.frames)

    def _show_times(self, text: str, media: Sequence[ImagePlan | VideoPlan]) -> str:
        """Returns the text with each video placeholder replaced by one timestamp and placeholder per temporal patch.

        The text is unchanged for a network that gets the time from positions. Raises SampleError if the text does not
        have one placeholder for each of `media`.
        """
        assert self.media is not None
        image, video, start, end = self._vision_tokens
        found = re.findall(f"{re.escape(image)}|{re.escape(video)}", text)
        if found != [video if isinstance(medium, VideoPlan) else image for medium in media]:
            raise SampleError("template", f"the chat template outputs {len(found)} of {len(media)} images and videos")
        if not self.media.videos.style.times_as_text:
            return text
        outer = (start, end) if self.config.outer_vision_tokens else ("", "")
        videos = iter([medium for medium in media if isinstance(medium, VideoPlan)])

        def written(_: re.Match[str]) -> str:
            frames = [f"<{time:.1f} seconds>{start}{video}{end}" for time in next(videos).times]
            return "".join([outer[0], *frames, outer[1]])

        return re.sub(f"(?:{re.escape(start)})?{re.escape(video)}(?:{re.escape(end)})?", written, text)

    def _tokens_by_pad(self, medium: ImagePlan | VideoPlan) -> list[int]:
        """Returns the number of tokens that each placeholder of an image or video is expanded to.

        An image has one placeholder. A video has one per timestamp if timestamps are text, else a single one.
        """
        assert self.media is not None
        if isinstance(medium, VideoPlan) and self.media.videos.style.times_as_text:
            return [medium.frame_tokens] * len(medium.times)
        return [medium.tokens]

    def _check_special(self, text: str, ids: np.ndarray) -> None:
        """Raises SampleError if the special tokens in `ids` are not those that the template wrote into `text`."""
        expected = self.tokenizer.convert_tokens_to_ids(self.template.special.findall(text))
        special = set(self.tokenizer.convert_tokens_to_ids(self.template.special_tokens))
        if [token for token in ids.tolist() if token in special] != expected:
            raise SampleError(
                "special_token",
                "the conversation contains text that is tokenized as a special token of the chat template; remove it",
            )

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
                    f"{token in self.template.special_tokens}), but config.json has {name}_id {stated}; the files "
                    "belong to different models"
                )
        self._pads = {"image": ids[0], "video": ids[1]}


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Tokens of a conversation, before its images and videos are decoded. `len` is the number of tokens N.

    The arrays are int64 [N].
    """

    input_ids: np.ndarray
    labels: np.ndarray
    """Token ID of each supervised token; `IGNORED` for the others."""
    token_types: np.ndarray
    """0 text, 1 image, 2 video placeholder."""
    media: list[ImagePlan | VideoPlan]
    """Images and videos in the order of their placeholders."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __str__(self) -> str:
        """Returns a description: patches and tokens of each image and video, and the number of text tokens."""
        text = int((self.token_types == 0).sum())
        shown = [f"{media_kind(medium)} {medium.grid} of {medium.tokens} tokens" for medium in self.media]
        return ", ".join([*shown, f"{text} of text"])


@dataclass(frozen=True, slots=True)
class ChatSample(ThroughPipe):
    """Training sample of a conversation: token IDs, labels and image patches. The sequence tensors are int64 [N].

    `labels` are not shifted: the label of a token is its own ID, or `IGNORED`. Patches are uint8, before normalization,
    in rows of 3·frames·side·side values (Qwen3-VL: 1536, Qwen2.5-VL: 1176). Images, and videos, are in the order of
    their placeholders.
    """

    key: str
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i)."""
    num_tokens: int
    """Number of tokens N, which counts toward the token limit of a pack."""
    input_ids: Tensor
    labels: Tensor
    token_types: Tensor
    """0 text, 1 image, 2 video placeholder."""
    image_patches: Tensor | None = None
    """uint8 [patches, values]."""
    image_grids: Tensor | None = None
    """int64 [images, 3]: number of patches of each image in time, rows and columns."""
    video_patches: Tensor | None = None
    """uint8 [patches, values]."""
    video_grids: Tensor | None = None
    """int64 [videos, 3]: number of patches of each video in time, rows and columns."""
    video_seconds: Tensor | None = None
    """float32 [videos]: seconds between two consecutive temporal patches of each video."""

    @property
    def num_supervised(self) -> int:
        """Number of tokens in the loss; the first token is never predicted, so it does not count."""
        return int((self.labels[1:] != IGNORED).sum())


def source_name(source: str | bytes) -> str:
    """Returns the path of an image or video for messages; of bytes and of a data URI, the text "its image"."""
    return source if isinstance(source, str) and not source.startswith("data:") else "its image"


def media_kind(medium: ImagePlan | VideoPlan) -> str:
    return "video" if isinstance(medium, VideoPlan) else "image"


class ChatTemplate:
    """Renders conversations with a chat template, and finds the answers in the rendered text.

    An answer begins after the header of the assistant's role, and after further text of the generation prompt (such as
    an opened `<think>`) if the template has written it. It ends with the token that ends the turn. Header and end are
    derived from the template itself. They contain special tokens, which no text of a conversation may contain, so no
    user text can be mistaken for them.

    Args:
        tokenizer: Tokenizer of transformers; its `chat_template` is set from `folder` if it has none.
        folder: Model folder.
    """

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        """Loads the template; raises DataError if it does not exist or its answers cannot be identified."""
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None:
            tokenizer.chat_template = separate_template(folder)
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.special_tokens = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, self.special_tokens)) or r"(?!)")
        self._learn(folder)

    def render(self, turns: Sequence[Turn], *, generation_prompt: bool = False) -> str:
        """Returns a conversation as text in the format of the chat template, with one placeholder per image or video.

        Args:
            turns: Turns of the conversation.
            generation_prompt: Append the header of the answer to generate.

        Raises:
            SampleError: special_token, text_too_long, or template if the template cannot render the conversation.
        """
        from jinja2.exceptions import TemplateError

        check_text("".join(turn.text for turn in turns), "the conversation")
        for number, turn in enumerate(turns, start=1):
            found = self.special.search(turn.text)
            if found:
                place = f"the text of turn {number} ({turn.role})"
                detail = f"{place} contains '{found[0]}', which belongs to the chat template; remove it"
                raise SampleError("special_token", detail)
        messages = [{"role": turn.role, "content": content_of(turn)} for turn in turns]
        try:
            return str(
                self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
            )
        except TemplateError as error:
            raise SampleError("template", f"the chat template rejects the conversation: {error}") from None
        except Exception as error:  # a template may do anything that Jinja's sandbox allows
            raise SampleError("template", f"the chat template fails: {type(error).__name__}: {error}") from None

    def answers(self, text: str) -> list[tuple[int, int]]:
        """Returns the character range (start, end) of every answer in a rendered text, including its end token."""
        return [found.span(1) for found in self._answer.finditer(text)]

    def _learn(self, folder: Path) -> None:
        turns = [turn for asks, says in zip(ASKED, ANSWERED) for turn in (say("user", asks), say("assistant", says))]
        try:
            both, asked = self.render(turns), self.render(turns[:1])
            opened = self.render(turns[:1], generation_prompt=True)
            between = both[after(both, ASKED[0]) : both.index(ANSWERED[0])]
            tail, opening = asked[after(asked, ASKED[0]) :], opened[after(opened, ASKED[0]) :]
            ends = [self.special.search(both, after(both, answer)) for answer in ANSWERED]
        except (SampleError, ValueError) as error:
            raise DataError(f"the chat template of {folder} cannot render a test conversation: {error}") from None
        header = shared_start(between, opening).removeprefix(tail)
        if not self.special.search(header) or None in ends:
            raise DataError(
                f"[E126] the chat template of {folder} does not mark the beginning and the end of an answer with "
                f"special tokens (an answer begins with {header!r}), so labels cannot be determined; use a "
                "template that does"
            )
        rest = re.escape(opening.removeprefix(tail).removeprefix(header))
        end = "|".join(re.escape(found[0]) for found in ends if found)
        self._answer = re.compile(f"{re.escape(header)}(?:{rest})?(.*?(?:{end}))", re.DOTALL)


def content_of(turn: Turn) -> str | list[dict[str, str]]:
    """Returns the `content` of a turn as chat templates expect it: text, or typed parts if it has images or videos."""
    if all(part.kind == "text" for part in turn.parts):
        return turn.text
    return [{"type": "text", "text": p.text} if p.kind == "text" else {"type": p.kind} for p in turn.parts]


def shared_start(one: str, other: str) -> str:
    differs = next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return one[:differs]


def after(text: str, part: str) -> int:
    return text.index(part) + len(part)


def separate_template(folder: Path) -> str:
    """Returns the template in chat_template.json, which tokenizers do not read; raises DataError without one."""
    file = folder / "chat_template.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["chat_template"])
    except FileNotFoundError:
        raise DataError(
            f"[E126] {folder} has no chat template: neither chat_template.jinja nor chat_template.json, nor one in "
            "tokenizer_config.json; copy it from the model's repository"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} contains no chat template: {error!r}") from None
