"""Recipes of Cosmos3 with robot actions: the released ones, variants of them, and a tiny one for a CPU.

The values of the released recipes are those of `cosmos_framework`, including the values in its TOML files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from worldsmith.config import recipe, ref
from worldsmith.data.clips.clip_dataset import ClipDataset
from worldsmith.data.robots.augmentation import AugmentationConfig
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot import DroidJoints, DroidPoses, LiberoRobot, PushTRobot, Robot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import edge
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.families.variables import hub_variable_advice
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.step_speed import CompileTokenizer
from worldsmith.training.optimizer import AdamW
from worldsmith.training.scheduler import LambdaLinear
from worldsmith.training.trainer import Trainer

ACTION_HEADS = ["action2llm", "llm2action", "action_modality_embed"]
"""Substrings of the names of the parameters that only robot actions use."""
LIBERO_SUITES = ["libero_spatial", "libero_object", "libero_goal", "libero_10"]
STATISTICS = "${oc.env:ROBOT_STATISTICS}"
STATISTICS_ADVICE = {
    "ROBOT_STATISTICS": "compute them with `worldsmith dataset statistics` (docs/robots.md), then "
    "`export ROBOT_STATISTICS=FILE`; or use a file of cosmos_framework's folder normalizer_stats",
}
LIBERO = {
    "LIBERO_ROOT": "`hf download nvidia/LIBERO_LeRobot_v3 --repo-type dataset --local-dir DIR`, then `export "
    "LIBERO_ROOT=DIR/libero_10`; for the recipe of all suites `export LIBERO_ROOT=DIR`",
    **STATISTICS_ADVICE,
}


def droid_advice(variable: str) -> dict[str, str]:
    """Returns {`variable`: shell commands that set it to the folder of the DROID dataset}."""
    return {
        variable: "`hf download nvidia/Cosmos3-DROID --repo-type dataset --local-dir DIR`, then "
        f"`export {variable}=FOLDER`, the one that contains success/meta/info.json"
    }


def libero(path: str) -> RobotDataset.Config:
    """Returns the windows of a LIBERO suite for training: 17 frames each, from 99 % of the episodes."""
    robot = LiberoRobot.Config(normalization="quantile_rot", statistics=STATISTICS)
    return RobotDataset.Config(path=path, robot=robot, split="train", val_fraction=0.01)


def droid(path: str, robot: Robot.Config, *, steps: int, modes: Sequence[str]) -> RobotDataset.Config:
    """Returns the windows of a DROID dataset for training: `steps` + 1 frames each, from 97 % of the episodes."""
    config = RobotDataset.Config(path=path, robot=robot, resolution="480", steps=steps)
    config.split, config.val_fraction, config.split_seed = "train", 0.03, 42
    config.modes = dict.fromkeys(modes, 1.0)
    return config


def droid_poses(robot: DroidPoses.Config, *modes: str) -> ClipMix.Config:
    """Returns the windows of successful and failed DROID episodes, 17 frames each, with pose actions."""
    paths = {part: "${oc.env:DATASET_PATH}/" + part for part in ("success", "failure")}
    return ClipMix.Config(datasets={part: droid(path, robot, steps=16, modes=modes) for part, path in paths.items()})


def use_robots(config: Trainer.Config, name: str, dataset: ClipDataset.Config, samples: int) -> RobotLoader.Config:
    """Changes data, network and objective of a video recipe, in place, to robot actions.

    Args:
        config: Config of `vision_sft_nano` or `vision_sft_tiny`.
        name: Name of the recipe and of the job.
        dataset: Windows of robot episodes.
        samples: Samples per pack.

    Returns:
        The new config of the data loader.
    """
    config.job.experiment = config.job.name = name
    config.job.group = "action_sft"
    cast(Cosmos3Generator.Config, config.model.config).network.action_gen = True
    config.objective = ActionFlow.Config(loss_scale=10.0, action_loss_weight=10.0)
    # A run on robot episodes generates no samples.
    del config.trainer.callbacks["EveryNDrawSample"]
    before = cast(RobotLoader.Config, config.dataloader_train)
    loader = config.dataloader_train = RobotLoader.Config(
        dataset=dataset,
        max_samples_per_batch=samples,
        max_caption_tokens=before.max_caption_tokens,
        num_workers=before.num_workers,
        latent_cache=before.latent_cache,
    )
    config.dataloader_val = None
    return loader


def use_nano(
    config: Trainer.Config, name: str, project: str, dataset: ClipDataset.Config, samples: int = 128
) -> RobotLoader.Config:
    """Changes `vision_sft_nano`, in place, to the values that the released LIBERO recipes have in common.

    The number of replicas is that of the processes divided by 8. Arguments and result are as for `use_robots`;
    `project` is that of the job.
    """
    loader = use_robots(config, name, dataset, samples)
    loader.prefetch_factor = 4
    config.job.project = project
    config.objective.shift = {"256": 3, "480": 5, "704": 10, "720": 10}
    model = config.model.config
    cast(Cosmos3Generator.Config, model).max_num_tokens_after_packing = 74000
    model.parallelism.data_parallel_replicate_degree = -1
    model.activation_checkpointing.mode = "selective"
    config.optimizer = AdamW.Config(
        lr=5e-5,
        weight_decay=0.05,
        keys_to_select=[*config.optimizer.keys_to_select, *ACTION_HEADS],
        lr_multipliers=dict.fromkeys(ACTION_HEADS, 5.0),
    )
    config.scheduler = LambdaLinear.Config(cycle_lengths=[16000], warm_up_steps=[500])
    config.trainer.max_iter, config.trainer.grad_accum_iter, config.trainer.logging_iter = 2000, 1, 50
    config.trainer.callbacks["grad_clip"] = GradClip.Config(clip_norm=1.0, force_finite=True)
    config.checkpoint.keys_to_skip_loading = ["net_ema.", *ACTION_HEADS]
    config.checkpoint.save_iter = 500
    return loader


def use_droid(config: Trainer.Config, loader: RobotLoader.Config, *, lr: float, cycle: int, workers: int) -> None:
    """Changes the learning rate, the use of the VAE and the workers, in place, to those of the DROID recipes."""
    config.optimizer.lr = lr
    config.scheduler = LambdaLinear.Config(cycle_lengths=[cycle], warm_up_steps=[0], f_start=[0.0], f_max=[0.4])
    config.trainer.callbacks["compile_tokenizer"] = CompileTokenizer.Config(enabled=True, warmup_resolutions=["480"])
    # A cache would need 1 to 2 MiB for each of many millions of windows.
    loader.latent_cache, loader.num_workers, loader.prefetch_factor = "", workers, 2


@recipe(
    "action_policy_libero_nano",
    starts_from="vision_sft_nano",
    aliases=["action_policy_libero_10_nano"],
    variables=LIBERO,
)
def action_policy_libero_nano(config: Trainer.Config) -> Trainer.Config:
    """Policy for one LIBERO suite from Cosmos3-Nano, on 8 GPUs or a multiple; published for 16."""
    use_nano(config, "action_policy_libero_nano", "cosmos3_action_libero", libero("${oc.env:LIBERO_ROOT}"))
    return config


@recipe("action_policy_libero_all_nano", starts_from="vision_sft_nano", variables=LIBERO)
def action_policy_libero_all_nano(config: Trainer.Config) -> Trainer.Config:
    """Policy for four LIBERO suites in equal parts from Cosmos3-Nano, on 8 GPUs or a multiple; published for 16."""
    suites = ClipMix.Config(
        datasets={suite: libero("${oc.env:LIBERO_ROOT}/" + suite) for suite in LIBERO_SUITES},
        weights=dict.fromkeys(LIBERO_SUITES, 1.0),
    )
    use_nano(config, "action_policy_libero_all_nano", "cosmos3_action_libero", suites)
    config.trainer.max_iter = 5000
    return config


@recipe("action_policy_droid_nano", starts_from="vision_sft_nano", variables=droid_advice("DROID_ROOT"))
def action_policy_droid_nano(config: Trainer.Config) -> Trainer.Config:
    """Policy for DROID in joint space from Cosmos3-Nano, on 8 GPUs or a multiple; published for 256."""
    episodes = droid("${oc.env:DROID_ROOT}/success", DroidJoints.Config(), steps=32, modes=["wam"])
    episodes.augmentation = AugmentationConfig(crop=0.95, brightness=0.3, contrast=0.4, saturation=0.5, hue=0.08)
    loader = use_nano(config, "action_policy_droid_nano", "cosmos3_action", episodes, samples=32)
    use_droid(config, loader, lr=2e-4, cycle=100000, workers=16)
    config.model.config.activation_checkpointing.mode = "full"
    config.trainer.max_iter = 10000
    config.checkpoint.save_iter = 1000
    return config


@recipe("action_fd_droid_posttrain", starts_from="vision_sft_nano", variables=droid_advice("DATASET_PATH"))
def action_fd_droid_posttrain(config: Trainer.Config) -> Trainer.Config:
    """Forward dynamics of DROID from Cosmos3-Nano with its action heads, on 8 GPUs or a multiple."""
    episodes = droid_poses(DroidPoses.Config(), "forward_dynamics")
    loader = use_nano(config, "action_fd_droid_posttrain", "cosmos3_action_fd", episodes)
    use_droid(config, loader, lr=1e-4, cycle=20000, workers=3)
    loader.max_samples_per_batch = None
    loader.max_sequence_length = ref("model.config.max_num_tokens_after_packing")
    config.trainer.max_iter = 20000
    config.checkpoint.keys_to_skip_loading = ["net_ema."]
    config.checkpoint.save_iter = 250
    return config


def use_own_loss(config: Trainer.Config, name: str) -> Trainer.Config:
    """Changes a released recipe, in place, to losses that count predicted values only, and returns it.

    `name` is the new name of the recipe and of the job.
    """
    config.job.experiment = config.job.name = name
    config.objective.normalize_loss_by_active = True
    return config


def normalized_droid(config: Trainer.Config, name: str, *modes: str) -> Trainer.Config:
    """Changes `action_fd_droid_posttrain`, in place, to other modes with normalized actions, and returns it."""
    robot = DroidPoses.Config(normalization="quantile_rot", statistics=STATISTICS, clamp=True)
    cast(RobotLoader.Config, config.dataloader_train).dataset = droid_poses(robot, *modes)
    return use_own_loss(config, name)


@recipe("action_id_droid_nano", starts_from="action_fd_droid_posttrain", variables=STATISTICS_ADVICE)
def action_id_droid_nano(config: Trainer.Config) -> Trainer.Config:
    """Inverse dynamics of DROID from Cosmos3-Nano with its action heads, with normalized actions."""
    return normalized_droid(config, "action_id_droid_nano", "inverse_dynamics")


@recipe("action_joint_droid_nano", starts_from="action_fd_droid_posttrain", variables=STATISTICS_ADVICE)
def action_joint_droid_nano(config: Trainer.Config) -> Trainer.Config:
    """Policy, forward and inverse dynamics of DROID in equal parts from Cosmos3-Nano, with normalized actions."""
    return normalized_droid(config, "action_joint_droid_nano", "wam", "forward_dynamics", "inverse_dynamics")


@recipe("action_fd_droid_lora", starts_from="action_fd_droid_posttrain", variables=STATISTICS_ADVICE)
def action_fd_droid_lora(config: Trainer.Config) -> Trainer.Config:
    """Forward dynamics of DROID with LoRA of rank 16 on Cosmos3-Nano, with its action heads and normalized actions."""
    normalized_droid(config, "action_fd_droid_lora", "forward_dynamics")
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.ema.enabled = True, 16, 32, False
    config.optimizer.keys_to_select, config.optimizer.lr_multipliers = ["lora_"], {}
    config.optimizer.lr = 5e-4
    config.checkpoint.keys_to_skip_loading = ["net_ema.", "lora_"]
    config.checkpoint.save_weights = "trained"
    return config


@recipe(
    "action_policy_libero_edge",
    starts_from="action_policy_libero_nano",
    variables=hub_variable_advice("BASE_CHECKPOINT_PATH", "nvidia/Cosmos3-Edge"),
)
def action_policy_libero_edge(config: Trainer.Config) -> Trainer.Config:
    """Policy for one LIBERO suite from Cosmos3-Edge, on 8 GPUs or a multiple."""
    use_own_loss(config, "action_policy_libero_edge")
    model = cast(Cosmos3Generator.Config, config.model.config)
    model.network = edge()
    model.network.action_gen = True
    model.text_tokenizer.path = "${oc.env:TOKENIZER_PATH,nvidia/Cosmos3-Edge}"
    config.optimizer.keys_to_select.append("k_norm_und_for_gen")
    return config


@recipe(
    "robots_tiny",
    starts_from="vision_sft_tiny",
    variables={"DATASET_PATH": "`export DATASET_PATH=DIR`, a PushT dataset (docs/robot_guide.md)", **STATISTICS_ADVICE},
)
def robots_tiny(config: Trainer.Config) -> Trainer.Config:
    """Policy for PushT from random weights with a tiny VAE, on a CPU."""
    robot = PushTRobot.Config(normalization="minmax", statistics=STATISTICS)
    episodes = RobotDataset.Config(path="${oc.env:DATASET_PATH}", robot=robot, resolution="96", prompt="task")
    use_robots(config, "robots_tiny", episodes, samples=16)
    return use_own_loss(config, "robots_tiny")
