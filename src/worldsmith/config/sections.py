"""Sections of the config that configure the run instead of one component."""

from __future__ import annotations

import importlib.util
import netrc
import os
import re
import urllib.parse
from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, Range
from worldsmith.config.errors import UserError, wrong


class JobConfig(Config):
    """Identity of the run: its folder under the output root and its name in the experiment tracker."""

    task: Literal["vfm", "vlm"] = "vfm"
    """Type of the model: `vfm` video generator, `vlm` vision-language reasoner."""
    experiment: str = ""
    """Name of the registered recipe that the run starts from."""
    project: str = ""
    """First level of the run folder, and the tracker's project."""
    group: str = ""
    """Second level of the run folder, and the tracker's group."""
    name: str = ""
    """Last level of the run folder, and the tracker's run name. Empty: the start time, so each start is a new run."""
    folder: str = ""
    """Parent of the run folder, instead of root/project/group. A relative path is below the output root if an
    environment variable sets that, otherwise below the current folder."""
    resume_newest: bool = False
    """If the name is empty: resume the most recently saved run with the same parent folder, if one exists."""
    wandb_mode: Literal["online", "offline", "disabled"] = "disabled"
    """Weights & Biases: `online` needs WANDB_API_KEY or a login, `offline` logs to files for a later sync, `disabled`
    logs nothing."""

    def check(self) -> None:
        for key in ("project", "group", "name"):
            value = getattr(self, key)
            if value.startswith(("/", "~")) or ".." in value.split("/") or "\0" in value:
                raise wrong(self, key, why="it would leave the output root", remedy="write a plain folder name")
            if "." in value.split("/"):
                raise wrong(self, key, why="'.' is the folder above itself", remedy="write a plain folder name")
        if "://" in self.folder or "\0" in self.folder:
            raise wrong(self, "folder", why="runs are only written to this machine", remedy="write a folder")

    def check_files(self) -> None:
        """Raises UserError if `wandb_mode` requires the package wandb or a login that is missing."""
        if self.wandb_mode == "disabled":
            return
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                f'job.wandb_mode is "{self.wandb_mode}", but the package wandb is not installed: `pip install '
                "'worldsmith[wandb]'`, or use \"disabled\""
            )
        if self.wandb_mode == "online" and not (os.environ.get("WANDB_API_KEY") or has_wandb_login()):
            raise UserError(
                'job.wandb_mode is "online", but there is no login: set WANDB_API_KEY, run `wandb login`, or use '
                '"offline" and upload the run later with `wandb sync`'
            )


def has_wandb_login() -> bool:
    """Returns whether the netrc file of the user has a key for the Weights & Biases server of this environment."""
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return bool(host and netrc.netrc(os.environ.get("NETRC")).authenticators(host))
    except (OSError, netrc.NetrcParseError):
        return False


class ParallelismConfig(Config):
    """Parallelism degrees. shard x replicate x context must equal the number of ranks."""

    data_parallel_shard_degree: Annotated[int, Range(ge=1, also=-1)] = -1
    """Sharding (FSDP) degree: number of ranks, or of context-parallel groups, over which one copy of the weights is
    sharded; -1: all remaining ones."""
    data_parallel_replicate_degree: Annotated[int, Range(ge=1, also=-1)] = 1
    """Replication (HSDP) degree: number of copies of the sharded weights; -1: as many as possible."""
    context_parallel_shard_degree: Count = 1
    """Context-parallel degree: number of neighboring ranks that read the same data and split the tokens of each pack;
    the weights are also sharded over them."""
    cfg_parallel_shard_degree: Count = 1
    """Number of ranks over which the two passes of classifier-free guidance are split. Training has no guidance, so
    only 1 is possible here."""
    fsdp_master_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of weights, gradients and optimizer state between steps; bfloat16 rounds the updates. Adapters stay
    float32."""
    offload: Literal["none", "frozen", "all"] = "none"
    """Weights that stay in host RAM; those of a layer are copied to the GPU while the layer before it computes, and
    freed after use. `frozen`: frozen weights, also quantized ones. `all`: trained weights too, with their gradients,
    optimizer state and EMA weights; the optimizer runs on the CPU."""
    offload_fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Fraction of the layers whose weights `offload` keeps in host RAM, spread evenly over the network; the weights of
    the other layers stay on the GPU, which takes more of its memory and fewer copies."""
    reduce_every_pack: bool = False
    """Reduce gradients after each pack instead of once per step: more communication, but no rank stores all gradients
    in float32."""

    def check(self) -> None:
        if self.offload == "none" and self.offload_fraction < 1:
            why, remedy = "no layer is offloaded", 'write offload = "frozen" or "all"'
            raise wrong(self, "offload_fraction", "offload", why=why, remedy=remedy)


class CompileConfig(Config):
    """Settings of torch.compile for the network."""

    enabled: bool = False
    """Compile the layers that process each token separately; attention uses its own kernels."""
    compile_dynamic: bool = True
    """Compile once for packs of all lengths. false: once per pack length, for at most 32 lengths; suited to packs of
    nearly equal length."""


class ActivationCheckpointingConfig(Config):
    """Activation checkpointing: activations are recomputed in the backward pass, which saves memory but costs time."""

    mode: Literal["none", "selective", "full"] = "none"
    """`none` keeps all activations, `selective` keeps the outputs of the operators in save_ops_regex, `full` keeps only
    the inputs of layers."""
    layer_fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Fraction of the layers to which `mode` applies, spread evenly over the network; `other_layers` applies to the
    rest, which takes more memory and less time."""
    other_layers: Literal["none", "selective"] = "none"
    """Mode of the layers outside of `layer_fraction`; `selective` only with the mode `full`."""
    offload: bool = False
    """Keep the inputs of recomputed layers in host RAM until the backward pass, which takes time for copies."""
    save_ops_regex: list[str] = field(default_factory=lambda: ["fmha"])
    """Regular expressions for the operators whose outputs `selective` keeps, such as aten.mm; `fmha` is any fused
    attention."""
    save_every_second_matmul: bool = False
    """In `selective`, also keep the outputs of every second large matmul, which halves the recomputation of matmuls."""
    preserve_rng_state: bool = True
    """Use the same random numbers in the recomputation as in the forward pass."""
    determinism_check: Literal["default", "match"] = "default"
    """`default` compares shapes, dtypes and devices of recomputed tensors; `match` (slow) also their values."""

    def check(self) -> None:
        check_patterns(self, "save_ops_regex")
        if self.mode == "none" and self.layer_fraction < 1:
            raise wrong(self, "layer_fraction", "mode", why="no layer is recomputed", remedy='write mode = "full"')
        if self.mode == "none" and self.offload:
            raise wrong(self, "offload", "mode", why="no layer is recomputed", remedy='write mode = "full"')
        if self.other_layers != "none" and (self.mode != "full" or self.layer_fraction == 1):
            why, remedy = "it only applies with mode full in a part of the layers", "omit other_layers"
            raise wrong(self, "other_layers", "mode", "layer_fraction", why=why, remedy=remedy)
        if self.mode == "selective" and not self.save_ops_regex and not self.save_every_second_matmul:
            raise wrong(self, "mode", "save_ops_regex", why="it would keep nothing", remedy='write mode = "full"')
        if self.save_every_second_matmul and "selective" not in (self.mode, self.other_layers):
            why, remedy = "this mode selects no operators", 'write mode = "selective"'
            raise wrong(self, "save_every_second_matmul", "mode", why=why, remedy=remedy)


def check_patterns(section: Config, name: str) -> None:
    """Raises WrongValueError if an item of the list field `name` is not a valid regular expression."""
    for index, pattern in enumerate(getattr(section, name)):
        try:
            re.compile(pattern)
        except re.error as error:
            raise wrong(section, f"{name}[{index}]", why=f"not a regular expression: {error}") from None


class DataSettingConfig(Config):
    """Limits for the data of a reasoner, to which several other settings refer."""

    max_tokens: Count = 16000
    """Tokens per packed sequence."""
