"""What nested specs of Cosmos-RL and TAO start from: a reasoner on LLaVA annotations."""

from __future__ import annotations

from typing import Any

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import ConfigError, recipe
from worldsmith.config.errors import UserError
from worldsmith.config.sections import JobConfig
from worldsmith.config.specs.train.counters import counts_samples, describes_models
from worldsmith.config.specs.translation import name_class
from worldsmith.config.tree.reader import from_dict
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, PolicyConfig
from worldsmith.families.vision_language.published import find_config, published_config, why_not_trained
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.loop_config import LoopConfig, monitors
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer


@recipe("cosmos_rl")
def cosmos_rl() -> Trainer.Config:
    """A reasoner on LLaVA annotations, as a nested spec of Cosmos-RL or TAO starts; the spec says the rest."""
    return Trainer.Config(
        job=JobConfig(task="vlm", project="cosmos_rl", group="sft"),
        model=ModelSpec(
            name="vision_language",
            config=VisionLanguageModel.Config(
                ema=PowerEMA.Config(enabled=False),
                policy=PolicyConfig(backbone=BackboneConfig(model_name="nvidia/Cosmos-Reason2-8B")),
            ),
        ),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=1e-6, betas=[0.9, 0.999], eps=1e-6, weight_decay=0.01),
        scheduler=LambdaCosine.Config(),
        trainer=LoopConfig(callbacks={"grad_clip": GradClip.Config(force_finite=False), **monitors()}),
        checkpoint=Checkpointer.Config(),
        dataloader_train=llava("DATASET_PATH"),
        dataloader_val=llava("VAL_DATASET_PATH", shuffle=False),
    )


def llava(variable: str, *, shuffle: bool = True) -> ChatLoader.Config:
    """Those that an environment variable names, one at a time."""
    dataset = LlavaDataset.Config(path=f"${{oc.env:{variable},}}")
    return ChatLoader.Config(dataset=dataset, max_samples_per_batch=1, shuffle=shuffle)


@counts_samples
def count_samples(dataset: dict[str, Any]) -> tuple[int, int]:
    """(records, those that can be used as far as their file tells, whether videos state their rate or not).

    Raises ValueError, also when there are none, or OSError.
    """
    try:
        settings = {"type": LlavaDataset.__name__, **dataset, "video_fps": "optional"}
        name_class(settings, ChatDataset.Config, None)
        found = resolve(from_dict(settings)).build()
    except ConfigError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error
    except DataError as error:
        raise ValueError(str(error)) from error
    if not len(found):
        why = f", the first: {found.rejections[0].detail}" if found.rejections else ""
        raise ValueError(f"{found.name} has {found.num_records} records and none that can be used{why}")
    return found.num_records, len(found)


@describes_models
def describe_network(name: str) -> str:
    """The network of a model folder, of a repository in the Hugging Face cache, or of a released model.

    Raises ValueError for one that cannot be trained, and for a config.json that cannot be read.
    """
    try:
        config = find_config(name)
    except UserError as error:
        raise ValueError(str(error)) from error
    if config is None:
        return "its config.json is not on this machine, so that its network is only known when the run starts"
    if (reason := why_not_trained(config)) is not None:
        raise ValueError(reason)
    known = "taken for the released one" if config == published_config(name) else "by its config.json"
    return f"a {config.get('model_type')}, {known}"
