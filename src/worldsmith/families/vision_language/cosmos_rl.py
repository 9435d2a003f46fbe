"""What nested specs of Cosmos-RL and TAO start from: a reasoner on LLaVA annotations."""

from __future__ import annotations

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config import recipe
from worldsmith.config.sections import JobConfig
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import BackboneConfig, PolicyConfig
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig, monitors
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
