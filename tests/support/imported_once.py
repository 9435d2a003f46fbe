"""What runs import on their way: imported before the ranks are forked, it is imported once for all of them."""
# ruff: noqa: F401

from __future__ import annotations

import psutil
import rich.style
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor

import worldsmith.checkpoint.run.write_checkpoint
import worldsmith.distributed.activation_checkpointing
import worldsmith.training.start_lines
import worldsmith.training.start_run


def import_for_reasoners() -> None:
    """Also what networks of transformers and their data are of."""
    import av.subtitles
    import transformers.models.auto.tokenization_auto

    import worldsmith.data.conversations.chat_loader
    import worldsmith.families.cogvideox.task
    import worldsmith.families.cosmos3.task
    import worldsmith.families.flux.task
    import worldsmith.families.vision_language.network.backbone
    import worldsmith.families.vision_language.network.forward
    import worldsmith.families.vision_language.task
    import worldsmith.families.wan.task
    import worldsmith.sampling.write_media
    import worldsmith.tools.export.convert


def import_for_videos() -> None:
    """Also the networks of videos, and diffusers with what it imports: half of all."""
    import_for_reasoners()
    import diffusers

    import worldsmith.data.clips.clip_maker
    import worldsmith.families.cosmos3.network.network
    import worldsmith.objectives.noise_schedule

    diffusers.AutoencoderKLWan  # noqa: B018 (imported when it is asked for)
