"""Samples of one `worldsmith generate` command: their model, their folders on disk and how they are generated.

A folder holds `sample_args.json`, the video or image, `actions.json` if the sample has robot actions, and
`sample_outputs.json`, which is written last: a sample that has it is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.distributed.world import World, gather_tensors
from worldsmith.files.atomic import remove_leftovers, write_text
from worldsmith.files.json_file import read_json_object

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.video_model import Sampling, VideoModel
    from worldsmith.sampling.generate_videos import BranchShare
    from worldsmith.sampling.sample_args import SampleArgs

SHEET, SHEET_SAMPLES = "contact_sheet.png", 64
WEIGHTS = ("*.safetensors", "*.distcp")
ARGS, OUTPUTS, ACTIONS = "sample_args.json", "sample_outputs.json", "actions.json"
FILES = ("vision.mp4", "vision.jpg")
SOURCES = "sources"
"""Entry of the arguments that states the source of each value, such as a flag; it does not affect the sample."""


@dataclass(frozen=True)
class Order:
    """Generation request: samples to generate with one model, the device, the output folder, the adapter to merge."""

    model: StoredModel
    device: str
    samples: list[SampleArgs]
    out: Path
    adapter: str | None

    @property
    def about(self) -> dict[str, Any]:
        """Folder, weights, iteration, adapter and fingerprint of the model, as JSON data for `sample_args.json`."""
        model = self.model
        return {
            "folder": str(model.folder.absolute()),
            "weights": model.weights,
            "iteration": model.iteration,
            "adapter": self.adapter,
            "mark": self.weights_mark,
        }

    def arguments(self, sample: SampleArgs) -> dict[str, Any]:
        """Returns the content of `sample_args.json`: sampling arguments, fingerprint of the input media, model."""
        begin = files_fingerprint(map(Path, sample.media)) if sample.media else None
        return {**sample.record(), "vision_mark": begin, "model": self.about}

    @cached_property
    def weights_mark(self) -> str:
        """Fingerprint (names, sizes, modification times) of all weight files of the model and its adapter.

        The weights of an untrained run are not included: they follow from the run folder, whose path is stored too.
        """
        folders = [] if self.model.weights == "untrained" else [self.model.folder]
        folders += [Path(self.adapter)] if self.adapter else []
        kinds = (*WEIGHTS, "*.pt") if self.model.weights_path else WEIGHTS
        return files_fingerprint(file for folder in folders for kind in kinds for file in sorted(folder.rglob(kind)))

    def made(self) -> list[str]:
        """Returns the names of the requested samples that are already complete on disk with the requested arguments."""
        known = [(sample, read_sample(self.out / sample.name)) for sample in self.samples]
        return [s.name for s, made in known if made is not None and not changed_arguments(made, self.arguments(s))]

    def require_same(self) -> None:
        """Raises FileExistsError if a requested sample exists and was generated with other arguments than requested."""
        for sample in self.samples:
            made = read_sample(self.out / sample.name)
            if made is not None and (changed := changed_arguments(made, self.arguments(sample))):
                raise FileExistsError(
                    f"{made.folder} was generated with other arguments ({', '.join(changed)}): choose another "
                    "folder, or use --force"
                )

    def setting_lines(self) -> list[str]:
        """Returns output lines with the sampling settings and the source of each, such as a flag or the model."""
        from worldsmith.sampling.sample_args import settings_lines

        return settings_lines(self.samples)

    def count(self, made: int) -> str:
        """Returns the number of samples, and the number `made` of those that are already complete, as text."""
        total = f"{len(self.samples)} sample{'s' * (len(self.samples) != 1)}"
        if made == len(self.samples):
            return f"{total}, all already complete"
        return f"{total}, {made} of them {'is' if made == 1 else 'are'} already complete" if made else total

    def make(
        self,
        generator: VideoModel,
        world: World,
        made: Collection[str],
        *,
        max_num_seqs: int | None,
        max_model_len: int | None,
    ) -> None:
        """Generates and writes this rank's part of the samples that are not in `made`.

        Packs (batches) are formed from all samples, complete or not, so that a resumed command produces the same bytes
        as an uninterrupted one.

        Args:
            generator: The loaded model.
            world: Ranks among which the packs, or the two guidance branches of each pack, are divided.
            made: Names of complete samples.
            max_num_seqs: Maximum number of samples in a forward pass; None: limited by tokens only.
            max_model_len: Maximum number of tokens in a forward pass; None: the model's training limit.
        """
        share = branch_share(world)
        most = min(max_num_seqs or len(self.samples), -(-len(self.samples) // world.data_size))
        packs = self.packs(generator, self.samples, most, max_model_len, shared=share is not None)
        open_packs = [pack for pack in packs if any(sample.name not in made for sample in pack)]
        mine = open_packs[world.data_rank :: world.data_size]
        total, done = sum(len(pack) * count_steps(generator, pack[0]) for pack in mine), 0
        show = make_progress_reporter("generating") if world.is_main else None

        def count(requests: int) -> None:
            nonlocal done
            done += requests
            if show is not None:
                show(done, total)

        for pack in mine:
            self.make_pack(generator, pack, made, count, share)

    def make_pack(
        self,
        generator: VideoModel,
        pack: Sequence[SampleArgs],
        made: Collection[str] = (),
        progress: Callable[[int], None] | None = None,
        share: BranchShare | None = None,
    ) -> None:
        """Generates samples in one forward pass per step, and writes those that are not in `made`.

        Args:
            generator: The loaded model.
            pack: Samples with the same sampling settings.
            made: Names of complete samples.
            progress: Called after each step with the number of samples.
            share: As returned by `branch_share`.
        """
        from worldsmith.sampling.generate_videos import run_pack
        from worldsmith.sampling.requests import read_request
        from worldsmith.sampling.robot_samples import RobotSampleArgs

        sampler, grid = generator.sampler(pack[0].sampling), LatentGrid(*generator.latent_grid)
        requests = [read_request(sampler, sample.request(grid)) for sample in pack]
        results = run_pack(sampler, requests, progress=progress, share=share)
        for sample, result in zip(pack, results):
            if sample.name not in made and (share is None or share.branch == 0):
                video, actions = generator.decode(sampler.finish(*result)).cpu(), None
                if isinstance(sample, RobotSampleArgs):
                    actions = sample.describe_actions(sampler.finish_actions(*result))
                write_sample(self.out / sample.name, sample, self.arguments(sample), video, actions)

    def packs(
        self, generator: VideoModel, samples: Iterable[SampleArgs], most: int, max_tokens: int | None, *, shared: bool
    ) -> list[list[SampleArgs]]:
        """Returns samples in packs (batches); all samples of a pack have the same sampling settings.

        Args:
            generator: The loaded model.
            samples: Samples of this request.
            most: Maximum number of samples in a pack.
            max_tokens: Maximum number of tokens in a forward pass; None: the model's training limit.
            shared: Whether two ranks compute the guidance branches of a pack, so that a forward pass has one branch.
        """
        from worldsmith.sampling.generate_videos import make_packs
        from worldsmith.sampling.requests import read_request

        grid = LatentGrid(*generator.latent_grid)
        groups: dict[Sampling, list[SampleArgs]] = {}
        for sample in samples:
            groups.setdefault(sample.sampling, []).append(sample)
        packs = []
        for sampling, group in groups.items():
            sampler = generator.sampler(sampling)
            requests = (read_request(sampler, sample.request(grid)) for sample in group)  # one at a time in memory
            cut = make_packs(sampler, requests, max_tokens=max_tokens, most=most, shared=shared)
            packs += [[group[place] for place in pack] for pack in cut]
        return packs

    def finish(self, made: int) -> Result:
        """Writes the contact sheet and returns the result of the command with the files of all samples.

        The sheet also shows samples that earlier commands generated with this model in the output folder. `made` is the
        number of requested samples that were complete before this command.
        """
        from worldsmith.sampling.write_media import contact_sheet, few_frames

        files = [self.out / sample.name / sample.file for sample in self.samples]
        earlier = list(self.earlier_samples())
        shown = [*files, *(sample.file for sample in earlier)][:SHEET_SAMPLES]
        prompts = [
            *(sample.prompt for sample in self.samples),
            *(str(sample.args.get("prompt", "")) for sample in earlier),
        ]
        clips = [few_frames(file) for file in shown]
        contact_sheet(self.out / SHEET, [(self.model.weights_description, clips)], prompts[:SHEET_SAMPLES])
        facts = [{**self.arguments(sample), "file": str(file)} for sample, file in zip(self.samples, files)]
        beside = f" (with {len(earlier)} earlier ones)" if earlier else ""
        done = f"{self.out}: {self.count(made)}; contact sheet{beside}: {self.out / SHEET}"
        return Result([*map(str, files), done], {"folder": str(self.out), "samples": facts})

    def earlier_samples(self) -> Iterator[MadeSample]:
        """Yields complete samples of this model in the output folder that are not part of this request."""
        own = {sample.name for sample in self.samples}
        for folder in sorted(self.out.iterdir()):
            if folder.name in own or not folder.is_dir():
                continue
            with suppress(UserError):  # a damaged sample that was not requested
                made = read_sample(folder)
                if made is not None and made.args.get("model") == self.about:
                    yield made


def count_steps(generator: VideoModel, sample: SampleArgs) -> int:
    """Returns the number of sampling steps that are executed for a sample, which can be fewer than requested."""
    return len(generator.sampler(sample.sampling).scales)


def branch_share(world: World) -> BranchShare | None:
    """Returns which guidance branch (conditional or negative) this rank computes; None: each rank computes both.

    The result also has the collective function that exchanges predictions between the two ranks of a pair.
    """
    from worldsmith.sampling.generate_videos import BranchShare

    if world.context_group is None:
        return None
    return BranchShare(world.context_group.rank(), partial(gather_tensors, group=world.context_group))


def make_order(model: StoredModel, device: str, samples: list[SampleArgs], out: Path) -> Order:
    """Builds the generation request (`Order`) for samples of a model.

    If the model has an adapter, it is moved to the request, so that it is merged when the weights are loaded.

    Args:
        model: The stored model, which may have an adapter.
        device: Device on which samples are generated.
        samples: The samples, with all arguments set.
        out: Output folder.
    """
    adapter = None if model.adapter is None else str(model.adapter)
    return Order(replace(model, adapter=None), device, samples, out, adapter)


def files_fingerprint(files: Iterable[Path]) -> str:
    """Returns a fingerprint of the names, sizes and modification times of files, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class MadeSample:
    """Complete sample on disk, generated by `worldsmith generate`."""

    folder: Path
    args: Mapping[str, Any]
    """Content of `sample_args.json`."""

    @property
    def file(self) -> Path:
        """Path of the generated video or image."""
        return next(self.folder / name for name in FILES if (self.folder / name).is_file())


def read_sample(folder: Path) -> MadeSample | None:
    """Returns the sample in a sample folder; None if it is missing or incomplete.

    Raises UserError if its `sample_args.json` is invalid.
    """
    if not (folder / OUTPUTS).is_file() or not any((folder / name).is_file() for name in FILES):
        return None
    return MadeSample(folder, read_json_object(folder / ARGS))


def changed_arguments(made: MadeSample, args: Mapping[str, Any]) -> list[str]:
    """Returns the names of the arguments whose values differ between a sample on disk and `args`, sorted."""
    wanted = json.loads(json.dumps(args))
    names = sorted({*made.args, *wanted} - {SOURCES})
    return [name for name in names if made.args.get(name) != wanted.get(name)]


def write_sample(
    folder: Path, sample: SampleArgs, args: Mapping[str, Any], video: Tensor, actions: Mapping[str, Any] | None
) -> None:
    """Writes a sample into its folder: video or image, `actions.json`, `sample_args.json` and `sample_outputs.json`.

    Args:
        folder: Folder of the sample; an earlier sample in it is replaced.
        sample: The sample, which determines the file type.
        args: Content of `sample_args.json`.
        video: Frames, uint8 [3, T, H, W]; T = 1 for an image.
        actions: Content of `actions.json`; None: the sample has no robot actions.
    """
    from worldsmith.sampling.write_media import write_jpeg, write_mp4

    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    for name in (OUTPUTS, ACTIONS, *FILES):
        (folder / name).unlink(missing_ok=True)
    write_text(folder / ARGS, to_json(args))
    if sample.is_image:
        write_jpeg(folder / sample.file, video[:, 0], sample.image_save_quality)
    else:
        write_mp4(folder / sample.file, video, sample.fps)
    if actions is not None:
        write_text(folder / ACTIONS, to_json(actions))
    files = [sample.file, *([ACTIONS] if actions is not None else [])]
    outputs = [{"content": {}, "files": files}]
    write_text(folder / OUTPUTS, to_json({"args": args, "status": "success", "message": None, "outputs": outputs}))


def to_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
