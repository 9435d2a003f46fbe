"""Requirements of a run in addition to its data: files, the hub and its token, writable folders, disk and memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsmith.checkpoint.sources.open_weights import FILES as WEIGHTS
from worldsmith.checkpoint.sources.remote_model import find_model
from worldsmith.config.errors import UserError
from worldsmith.config.sections import has_wandb_login
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.memory import free_memory
from worldsmith.distributed.world import World, device_remarks, local_size, present_device
from worldsmith.files.remote import SECRETS, cache_folder, in_store, is_remote
from worldsmith.files.remote_folder import find_remote
from worldsmith.files.write_checks import nearest_folder, require_writable
from worldsmith.models.hub import TOKEN, HubName, MissingPartError, ask_hub, has_token
from worldsmith.models.model import Model
from worldsmith.models.model_files import cached, hub_name, is_local
from worldsmith.models.weights.weight_table import table_of
from worldsmith.monitor.short_text import format_bytes
from worldsmith.planning.simulation_inputs import sections
from worldsmith.tools.check.inspect_data import labeled_line
from worldsmith.training.preflight import (
    build_optimizer,
    check_files,
    check_space,
    checkpoint_size,
    kept_checkpoints,
    lack_of_memory,
)
from worldsmith.training.run_folder import run_path
from worldsmith.training.state_bytes import state_bytes

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED = 64 * 2**20
"""Min bytes of shared memory; below it, NCCL on one machine usually fails."""


@dataclass(slots=True)
class Needs:
    """Requirements of a run (disk, memory, hub files, credentials), what this machine has, and problems found."""

    disk: dict[str, int] = field(default_factory=dict)
    """Sizes (bytes) of a checkpoint, of cached latents and of downloads, free bytes of their disks, and the number of
    checkpoints that are kept (`checkpoints_kept`)."""
    machine: dict[str, Any] = field(default_factory=dict)
    """GPU names (`gpus`), bytes of memory that a process needs before activations (`needed`), free bytes (`free`)."""
    hub: list[dict[str, Any]] = field(default_factory=list)
    """Models on the hub or in a store: config `field`, `name`, `state` and, unless cached, `bytes` to download."""
    credentials: dict[str, bool] = field(default_factory=dict)
    """Whether each credential that the run may need, such as `WANDB_API_KEY`, is set."""
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def writable(self, folder: Path, what: str) -> None:
        """Adds a problem to `problems` if `folder` cannot be written; `what` describes it, such as "the cache "."""
        try:
            require_writable(folder, what=what)
        except UserError as error:
            self.problems.append(str(error))

    def lines(self) -> Iterator[str]:
        """Yields the lines about disk, memory, hub and credentials for the terminal."""
        disk, machine = self.disk, self.machine
        if "checkpoint" in disk:
            kept = disk["checkpoints_kept"] * disk["checkpoint"]
            sizes = f"checkpoints {format_bytes(disk['checkpoint'])} each, at most {format_bytes(kept)} at a time"
            yield labeled_line("disk", f"{sizes}; free: {format_bytes(disk['free'])}")
        if "latent_cache" in disk:
            free = format_bytes(disk["latent_cache_free"])
            yield labeled_line("", f"latents of an epoch {format_bytes(disk['latent_cache'])}; free: {free}")
        if machine:
            gpus = ", ".join(machine["gpus"]) or "no GPU"
            needed = f"each process needs {format_bytes(machine['needed'])} before activations"
            yield labeled_line("machine", f"{gpus}; {needed}; free: {format_bytes(machine['free'])}")
        for place in self.hub:
            there = f", {format_bytes(place['bytes'])} to download" if "bytes" in place else ""
            yield labeled_line("models", f"{place['name']} is {place['state']}{there} ({place['field']})")
        if self.credentials:
            states = (f"{name} {'is set' if there else 'is not set'}" for name, there in self.credentials.items())
            yield labeled_line("credentials", ", ".join(states))


def inspect_files(tree: Any, variables: Mapping[Keys, str] | None = None) -> Needs:
    """Inspects the files and hub repositories that a config names, before the model is built.

    Args:
        tree: Config of the run.
        variables: Environment variable that sets a config value, by key path of the value; for messages.

    Returns:
        The requirements with the problems that were found.
    """
    needs = Needs()
    needs.problems += [f"{problem.path}: {problem.message}" for problem in check_files(tree, variables=variables)]
    needs.writable(Path(tempfile.gettempdir()), "the folder for temporary files ")
    cache = getattr(tree.dataloader_train, "latent_cache", "")
    if cache and not is_remote(cache):
        needs.writable(Path(cache), "the latent cache ")
    inspect_models(needs, tree)
    if tree.job.wandb_mode == "online":
        needs.credentials["WANDB_API_KEY"] = bool(os.environ.get("WANDB_API_KEY")) or has_wandb_login()
    return needs


def inspect_models(needs: Needs, tree: Any) -> None:
    """Adds the model components on the hub or in a store to `needs`; adds a problem if a disk is too small for them.

    `tree` is the config of the run. Components that a problem in `needs` already lists as not available are not queried
    in the store or on the hub again.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HTTPError

    caches = {
        "on the hub": ("download", Path(constants.HF_HUB_CACHE), "Hugging Face cache", "HF_HOME"),
        "in the store": ("store_download", cache_folder("models"), "cache of models", "XDG_CACHE_HOME"),
    }
    downloads: dict[str, dict[str, int]] = {"in the cache": {}, **{state: {} for state in caches}}
    for name, value, places in named_models(tree):
        fact: dict[str, Any] = {"field": name, "name": SECRETS.sub("", str(value)), "state": "not available"}
        if not any(f"{fact['name']}: " in problem for problem in needs.problems):
            with suppress(HTTPError, OSError, MissingPartError):  # not required if a run continues without it
                fact["state"], sizes = find_downloads(name, value, places)
                downloads[fact["state"]] |= sizes  # parts of one repository may share files
                fact |= {"bytes": sum(sizes.values())} if sizes else {}
        needs.hub.append(fact)
        if isinstance(value, HubName):
            needs.credentials[TOKEN] = has_token()
    for state, (key, home, what, variable) in caches.items():
        if not downloads[state]:
            continue
        needs.writable(home, f"the {what} ")
        wanted, free = sum(downloads[state].values()), shutil.disk_usage(nearest_folder(home)).free
        needs.disk |= {key: wanted, f"{key}_free": free}
        if wanted > free:
            needs.problems.append(
                f"downloads need {format_bytes(wanted)}, but the disk of the {what} {home} has {format_bytes(free)} "
                f"free. Free disk space, or set {variable} to a folder on another disk"
            )


def find_downloads(
    field: str, model: HubName | str, places: Sequence[Sequence[str]]
) -> tuple[Literal["in the cache", "on the hub", "in the store"], dict[str, int]]:
    """Returns where a model is, and the size in bytes of each file or folder to download, by a name of its own.

    Args:
        field: Config field that names the model; begins error messages.
        model: Repository of the hub, or address of a store.
        places: Shell patterns of the required files, one list per possible layout.
    """
    if isinstance(model, str):
        is_start = places == (WEIGHTS,)  # which may be those of a run
        found = find_model(model, field=field) if is_start else find_remote(model, places, field=field)
        return ("in the store", {str(found.folder): found.bytes}) if found.cached() is None else ("in the cache", {})
    if any(cached(model, patterns) is not None for patterns in places):
        return "in the cache", {}
    hub = model

    def sizes(patterns: Sequence[str]) -> dict[str, int]:
        return {f"{hub.repo}@{hub.revision}/{file}": size for file, size in ask_hub(hub, patterns).items()}

    for patterns in places[:-1]:
        with suppress(MissingPartError):
            return "on the hub", sizes(patterns)
    return "on the hub", sizes(places[-1])


def named_models(tree: Any) -> Iterator[tuple[str, HubName | str, Sequence[Sequence[str]]]]:
    """Yields the pretrained models and parts of models that the config of a run, `tree`, names and that are not local.

    Each is (config field, hub repository or address, glob patterns of the required files per possible layout).
    """
    start = tree.initial_weights()
    named: list[tuple[str, str, Sequence[Sequence[str]]]] = []
    named += [] if start is None else [(start.field, start.path, (WEIGHTS,))]
    for where, section in sections(tree.model.config, "model.config"):
        if (part := section.substitute()) is not None:
            named.append((f"{where}.{part.field}", getattr(section, part.field), part.places))
    for key, name, places in named:
        found = name if in_store(name) else None if is_local(name) else hub_name(name)
        if found is not None:
            yield key, found, places[-1:] if isinstance(found, HubName) and found.inner else places


def inspect_machine(needs: Needs, tree: Any, model: Model, degrees: Degrees, ranks: int) -> None:
    """Compares the disk space and memory that the run needs with this machine; adds problems and remarks to `needs`.

    Args:
        needs: Requirements of the run, which are changed in place.
        tree: Config of the run.
        model: Model of the run, without weights.
        degrees: Parallelism degrees.
        ranks: World size.
    """
    import torch

    folder, world = nearest_folder(run_path(tree.job)), World(device=present_device())
    build_optimizer(tree, model.network)  # which chooses what is trained
    needs.disk |= {
        "checkpoint": checkpoint_size(tree, model, ranks),
        "checkpoints_kept": kept_checkpoints(tree),
        "free": shutil.disk_usage(folder).free,
    }
    try:
        needs.remarks += check_space(tree, model, ranks, folder)
    except UserError as error:
        needs.problems.append(str(error))
    states = state_bytes(table_of(model), tree, degrees)
    needs.machine = {
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "needed": states.total,
        "free": free_memory(world.device),
    }
    lack = lack_of_memory(states, world, min(ranks, local_size()))
    if lack is not None:  # outside a launch, this may be another machine than the one that trains
        told = needs.problems if "WORLD_SIZE" in os.environ else needs.remarks
        told.append(f"the run does not fit into the memory of this machine: {lack}")
    needs.remarks += device_remarks(ranks)
    if needs.machine["gpus"] and ranks > 1 and (shared := shared_memory()) < LEAST_SHARED:
        needs.remarks.append(
            f"{SHARED_MEMORY} has only {format_bytes(shared)}; NCCL usually fails with so little (bus error, no "
            "space left on device): start the container with --ipc=host or a larger --shm-size"
        )


def inspect_latent_cache(needs: Needs, cache: str, needed: int) -> None:
    """Adds the size of the latents and the free disk space to `needs.disk`; adds a remark if the latents do not fit.

    Args:
        needs: Requirements of the run, which are changed in place.
        cache: Folder of the latent cache.
        needed: Bytes of the latents of an epoch.
    """
    free = shutil.disk_usage(nearest_folder(Path(cache))).free
    needs.disk |= {"latent_cache": needed, "latent_cache_free": free}
    if needed > free:
        needs.remarks.append(
            f"the latents of an epoch need {format_bytes(needed)}, but the disk of {cache} has {format_bytes(free)} "
            "free: clips whose latents do not fit are encoded again in every epoch"
        )


def shared_memory() -> int:
    """Returns the size of /dev/shm in bytes; 0 if it does not exist."""
    return shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else 0
