"""Check values of the Cosmos3 generator that were published with it, against the code that must reproduce them.

Each table says where its numbers come from. A number that can be derived from another one of the page is not here.
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from worldsmith.data.clips.captions import CAPTION_KEYS, LEGACY_STYLES, Caption, render_caption
from worldsmith.data.clips.clip_frames import cover_and_crop
from worldsmith.data.clips.clip_maker import draw_condition_frames
from worldsmith.data.clips.frame_selection import select_frames
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import RESOLUTIONS, TIERS, aspect_bucket, check_tier, target_size
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.packing import SequentialPacker
from worldsmith.families.cosmos3.model import Cosmos3Sampler
from worldsmith.families.cosmos3.network.architecture import edge, nano, super_
from worldsmith.families.cosmos3.network.rope import video_positions
from worldsmith.models.ema import PowerEMA, sigma_rel_to_gamma
from worldsmith.models.video_model import Sampling
from worldsmith.models.video_vae.wan_files import LATENTS_MEAN, LATENTS_STD, released_to_diffusers
from worldsmith.models.video_vae.windows import window_frames
from worldsmith.objectives.noise_schedule import ltx2, shift_sigma, waver
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.training.scheduler import LambdaCosine, LambdaLinear, multiplier

GRID = LatentGrid(frames=4, pixels=16, patch=2)


class TestAverage:
    """The published power average: γ from the relative width, β from the 0-based step."""

    @pytest.mark.parametrize(("rate", "gamma"), [(0.1, 6.937204), (0.05, 16.972199), (0.2, 1.826214)])
    def test_exponent(self, rate: float, gamma: float) -> None:
        assert sigma_rel_to_gamma(rate) == pytest.approx(gamma, abs=5e-7)

    @pytest.mark.parametrize(
        ("iteration", "beta"),
        [(0, 0.0), (1, 0.004080), (2, 0.040025), (10, 0.469308), (100, 0.924060), (499, 0.984235), (500, 0.984267),
         (1000, 0.992098), (10000, 0.999207)],
    )  # fmt: skip
    def test_decay(self, iteration: int, beta: float) -> None:
        average = PowerEMA.Config(rate=0.1).build(network=torch.nn.Linear(1, 1))
        assert average.get_decay(iteration) == pytest.approx(beta, abs=1e-6)


class TestLearningRate:
    """The published schedules of the fine-tuning recipes: warm-up 50 of 1000, factor 0 → 1 → 0; and two cycles."""

    ONE = {"cycle_lengths": [1000], "warm_up_steps": [50], "f_start": [0.0], "f_max": [1.0], "f_min": [0.0]}
    TWO = {"cycle_lengths": [4, 4], "warm_up_steps": [2, 2], "f_start": [0.0, 0.05], "f_max": [1.0, 0.5],
           "f_min": [0.1, 0.2]}  # fmt: skip

    @pytest.mark.parametrize(
        ("n", "cosine"),
        [(0, 0), (1, 0.02), (25, 0.5), (50, 1), (100, 0.99318), (499, 0.54294), (500, 0.541289673), (525, 0.5),
         (1000, 0)],
    )  # fmt: skip
    def test_cosine(self, n: int, cosine: float) -> None:
        assert multiplier(LambdaCosine.Config(**self.ONE), n) == pytest.approx(cosine, abs=5e-6)

    @pytest.mark.parametrize(("n", "line"), [(0, 0), (25, 0.5), (50, 1), (525, 0.5), (1000, 0)])
    def test_line(self, n: int, line: float) -> None:
        assert multiplier(LambdaLinear.Config(**self.ONE), n) == pytest.approx(line, abs=1e-12)

    def test_the_released_llava_onevision_file_whose_warm_up_is_longer_than_its_cycle(self) -> None:
        """Warm-up of 1000 steps from 0.05 to 1, cycle and run of 500: the cycle is looked up first, so step 500 is the
        last one that has a value there, and all of them are on the line of the warm-up."""
        released = {"cycle_lengths": [500], "warm_up_steps": [1000], "f_start": [0.05], "f_max": [1.0], "f_min": [0.5]}
        found = [multiplier(LambdaCosine.Config(**released), n) for n in range(501)]
        assert found == pytest.approx([(1.0 - 0.05) / 1000 * n + 0.05 for n in range(501)], rel=1e-14)
        assert found[500] == pytest.approx(0.525)

    @pytest.mark.parametrize("schedule", [LambdaLinear, LambdaCosine])
    def test_two_cycles(self, schedule: type[LambdaLinear] | type[LambdaCosine]) -> None:
        """The step on which a cycle ends belongs to it; the next cycle begins with its first warm-up step."""
        found = [multiplier(schedule.Config(**self.TWO), n) for n in range(9)]
        assert found == pytest.approx([0, 0.5, 1, 0.55, 0.1, 0.275, 0.5, 0.35, 0.2], abs=1e-12)


class TestNoiseLevels:
    """The published noise distributions and shifts."""

    @pytest.mark.parametrize(
        ("u", "time"),
        [(0.0, 1.0), (0.1, 0.80257), (0.25, 0.61642), (0.5, 0.5), (0.75, 0.38358), (0.9, 0.19743), (1.0, 0.0)],
    )
    def test_waver(self, u: float, time: float) -> None:
        assert waver(u) == pytest.approx(time, abs=5e-6)

    @pytest.mark.parametrize("shift", [0.5, 1.0, 3.0, 10.0])
    def test_ltx2_anchors(self, shift: float) -> None:
        """The two quantiles of its definition become 1 and 0, the latter reflected at 0.001; a tenth is uniform."""
        assert ltx2(shift, z=3.0902, choice=0.5, uniform=0.0) == pytest.approx(1.0, abs=1e-12)
        assert ltx2(shift, z=-2.5758, choice=0.5, uniform=0.0) == pytest.approx(0.002, abs=1e-12)
        assert ltx2(shift, z=9.0, choice=0.5, uniform=0.0) == 1.0
        assert ltx2(shift, z=0.0, choice=0.0999, uniform=0.25) == pytest.approx(0.001 + 0.999 * 0.25)

    @pytest.mark.parametrize(("tier", "shift"), [("256", 3), ("480", 5), ("704", 10), ("720", 10)])
    def test_shift_of_a_tier(self, tier: str, shift: float) -> None:
        """The published table names 256, 480 and 720; its rule for sizes counts 704 as 720."""
        RectifiedFlow.Config().check_tier(tier)
        flow = RectifiedFlow.Config().build()
        for size in RESOLUTIONS[tier].values():
            assert published_tier(*size) == ("720" if tier == "704" else tier)
        assert flow.config.shift[tier] == shift
        assert shift_sigma(0.5, shift) == pytest.approx(shift / (shift + 1))

    @pytest.mark.parametrize("tier", ["768", "1280"])
    def test_tiers_without_a_published_shift_are_refused_until_one_is_named(self, tier: str) -> None:
        assert {published_tier(*size) for size in RESOLUTIONS[tier].values()} == {"768"}
        with pytest.raises(ValueError, match=f"no entry for the resolution bucket '{tier}'.*add '{tier}'"):
            RectifiedFlow.Config().check_tier(tier)
        RectifiedFlow.Config(shift=5).check_tier(tier)
        RectifiedFlow.Config(shift={tier: 12}).check_tier(tier)

    def test_dynamic_shift_is_the_root_of_latent_positions_over_the_base(self) -> None:
        """n = T·h·w of the latents before they are cut into 2×2 patches."""

        class Clip:
            position, num_frames, condition_frames, resolution = 0, 61, 0, "256"
            latent_shape = (16, 12, 20)

        flow = RectifiedFlow.Config(shift={"dynamic_shift_base_num_tokens_video": 960}).build()
        assert flow.shift_of(Clip()) == pytest.approx(math.sqrt(16 * 12 * 20 / 960))  # type: ignore[arg-type]


class TestSampler:
    """The published sampling schedules: (steps, shift), first and last σ, and what the network is told."""

    @pytest.mark.parametrize(
        ("steps", "shift", "first", "last", "told"),
        [
            (35, 5, [0.999800, 0.993948, 0.987817], [0.232369, 0.128090], ([999, 993, 987, 981], [232, 128])),
            (35, 10, [0.999900, 0.996965, 0.993871], [0.377109, 0.227092], ([999, 996, 993, 990, 987], [227])),
            (50, 3, [0.999666, 0.992907, 0.985963], [0.111008, 0.057637], ([999, 992, 985], [111, 57])),
        ],
    )
    def test_schedule(self, steps: int, shift: float, first: list, last: list, told: tuple[list, list]) -> None:
        sampler = Cosmos3Sampler(None, Sampling(steps=steps, guidance=1.0, shift=shift))
        sigmas = sampler.make_scheduler().sigmas.tolist()
        assert len(sigmas) == steps + 1
        assert sigmas[:3] == pytest.approx(first, abs=1e-6)
        assert sigmas[-3:-1] == pytest.approx(last, abs=1e-6)
        assert sigmas[-1] == 0
        assert sampler.timesteps[: len(told[0])] == told[0]
        assert sampler.timesteps[-len(told[1]) :] == told[1]


class TestPositions:
    """The worked example of the positions: 98 caption ids, so a text of 100, and a margin of 15000."""

    @pytest.mark.parametrize(
        ("fps", "times"),
        [(24.0, [15100, 15101, 15102]), (16.0, [15100, 15101.5, 15103]), (None, [15100, 15101, 15102])],
    )
    def test_latent_frames(self, fps: float | None, times: list[float]) -> None:
        found = video_positions([(3, 1, 2)], [98 + 2], [fps], nano())
        assert found[0].view(3, 2).tolist() == [[t, t] for t in times]
        assert found[1:].tolist() == [[0, 0] * 3, [0, 1] * 3]

    def test_tiers_share_the_margin_and_the_rate(self) -> None:
        for tier in (edge(), nano(), super_()):
            assert (tier.unified_3d_mrope_temporal_modality_margin, tier.base_fps) == (15000, 24)
            assert tier.mrope_section == [24, 20, 20]


class TestSizes:
    """The published tables of resolutions (W, H), aspect limits, token counts, and the rules around them."""

    TABLE = {
        "256": [(256, 256), (320, 256), (256, 320), (320, 192), (192, 320)],
        "480": [(640, 640), (736, 544), (544, 736), (832, 480), (480, 832), (512, 768)],
        "704": [(960, 960), (1088, 832), (832, 1088), (1280, 704), (704, 1280)],
        "720": [(960, 960), (1104, 832), (832, 1104), (1280, 720), (720, 1280)],
        "768": [(1024, 1024), (1184, 880), (880, 1184), (1360, 768), (768, 1360)],
        "1080": [(1440, 1440), (1664, 1248), (1248, 1664), (1920, 1080), (1080, 1920)],
        "1280": [(1712, 1712), (1968, 1472), (1472, 1968), (2272, 1280), (1280, 2272)],
        "2048": [(2728, 2728), (3160, 2368), (2368, 3160), (3640, 2048), (2048, 3640)],
        "gt_2048": [(5464, 5464), (6304, 4728), (4728, 6304), (7280, 4096), (4096, 7280)],
    }
    ASPECTS = ["1,1", "4,3", "3,4", "16,9", "9,16", "2,3"]

    def test_resolutions(self) -> None:
        published = {tier: dict(zip(self.ASPECTS, sizes)) for tier, sizes in self.TABLE.items()}
        assert {tier: RESOLUTIONS[tier] for tier in published} == published

    @pytest.mark.parametrize("tier", TABLE)
    def test_a_tier_can_be_trained_or_is_refused_with_the_sizes_that_stand_against_it(self, tier: str) -> None:
        odd = [size for size in self.TABLE[tier] if size[0] % 16 or size[1] % 16]
        assert (tier in TIERS) == (not odd)
        if not odd:
            check_tier(tier)
            return
        with pytest.raises(ValueError, match=f'"{tier}": its sizes .*{odd[0][0]}x{odd[0][1]}.*not all multiples of 16'):
            check_tier(tier)

    @pytest.mark.parametrize(
        ("ratio", "bucket"),
        [(0.5625, "9,16"), (0.6499, "9,16"), (0.65, "3,4"), (0.8799, "3,4"), (0.88, "1,1"), (1.1599, "1,1"),
         (1.16, "4,3"), (1.5499, "4,3"), (1.55, "16,9"), (1.7778, "16,9")],
    )  # fmt: skip
    def test_aspect_limits(self, ratio: float, bucket: str) -> None:
        assert aspect_bucket(round(ratio * 10000), 10000) == bucket

    def test_resize_covers_then_crops_the_centre(self) -> None:
        """1280×720 into 320×192: the ratio is max(320/1280, 192/720), sides and offsets are rounded."""
        cut = cover_and_crop(1280, 720, target_size("256", 1280, 720))
        assert (cut.width, cut.height, cut.left, cut.top) == (341, 192, 10, 0)

    @pytest.mark.parametrize(
        ("size", "at_61", "at_189"),
        [((320, 192), 960, 2880), ((832, 480), 6240, 18720), ((1280, 704), 14080, 42240), ((1280, 720), 14720, 44160),
         ((1104, 832), 14560, 43680), ((1360, 768), 16512, 49536)],
    )  # fmt: skip
    def test_token_counts(self, size: tuple[int, int], at_61: int, at_189: int) -> None:
        """The ceil column: a latent side that is odd is padded by one."""
        width, height = size
        tokens = [GRID.vision_tokens(GRID.latent_shape(frames, height, width)) for frames in (61, 189)]
        assert tokens == [at_61, at_189]

    def test_the_packer_counts_text_plus_one_and_two_per_clip_below_the_cap(self) -> None:
        """46 clips of 320×192×61 with 10 ids each fill 45,056: the cap itself is not reached."""
        assert GRID.latent_shape(61, 192, 320) == (16, 12, 20)
        tokens = GRID.sample_tokens(10, (16, 12, 20))
        assert tokens == 10 + 1 + 960 + 2
        packer = SequentialPacker(lambda n: n, max_sequence_length=45056, max_samples_per_batch=None)
        assert len(packer.pack(iter([tokens] * 100))) == 46
        assert packer.require_fit(45055) == 45055
        with pytest.raises(ValueError, match="fits into no pack"):
            packer.require_fit(45056)

    @pytest.mark.parametrize(("frames", "usable"), [(61, 61), (62, 61), (64, 61), (65, 65), (4, 1), (189, 189)])
    def test_lengths_are_cut_to_4k_plus_1(self, frames: int, usable: int) -> None:
        assert GRID.usable_frames(frames) == usable


class TestFrames:
    """The published choice of frames."""

    @staticmethod
    def select(window: tuple[int, int, int], *, fps: float = 24.0, total: int = 1000, count: int = -1,
               mode: str = "max_30fps", place: str = "first"):  # fmt: skip
        config = VideoDataset.Config(num_video_frames=count, temporal_interval_mode=mode, frame_selection_mode=place)
        return select_frames(window, config, GRID, random.Random(0), total=total, fps=fps)

    def test_minus_one_takes_the_window_at_its_own_interval(self) -> None:
        assert list(self.select((100, 162, 1)).indices) == list(range(100, 161))
        assert list(self.select((0, 123, 2)).indices) == list(range(0, 122, 2))
        assert self.select((0, 500, 1), total=90).count == 89

    @pytest.mark.parametrize(
        ("mode", "fps", "interval"),
        [("force_one", 120.0, 1), ("max_30fps", 59.94, 1), ("max_30fps", 60.0, 2), ("max_30fps", 120.0, 4),
         ("max_30fps", 24.0, 1), ("entire_chunk", 24.0, 3)],
    )  # fmt: skip
    def test_intervals(self, mode: str, fps: float, interval: int) -> None:
        assert self.select((0, 199, 7), count=61, mode=mode, fps=fps).interval == interval

    def test_the_middle_is_half_of_what_is_left(self) -> None:
        """span = (N-1)·interval + 1, start + (F - span)//2."""
        assert self.select((10, 109, 1), count=61, place="center").start == 10 + (100 - 61) // 2
        assert self.select((10, 209, 1), count=61, place="center", fps=60.0).start == 10 + (200 - 121) // 2


class TestCaptions:
    """The published sentences and their order, the preference of keys, and the shares of conditioning."""

    @staticmethod
    def render(text: str, **changes: object) -> str:
        settings = {
            "suffix": "", "append_duration_fps": True, "append_resolution": True, "dropout_rate": 0.0,
            "dropout_keeps_metadata": False, "num_frames": 61, "fps": 24.0, "size": (192, 320),
        }  # fmt: skip
        structured = bool(changes.pop("structured", False))
        return render_caption(
            Caption("caption", text, structured), **{**settings, **changes}, rng=random.Random(0)  # type: ignore[arg-type]
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "changes", "expected"),
        [
            ("A robot waves", {}, "A robot waves. The video is 2.5 seconds long and is of 24 FPS. "
             "This video is of 192x320 resolution."),
            ("A robot waves... ", {"suffix": "Photorealistic.", "append_resolution": False},
             "A robot waves. Photorealistic. The video is 2.5 seconds long and is of 24 FPS."),
            ("A robot waves.", {"fps": 29.97, "num_frames": 121, "append_resolution": False},
             "A robot waves. The video is 4.0 seconds long and is of 30 FPS."),
            ('{"actions": []}', {"structured": True, "suffix": "x"}, '{"actions": []}'),
            ("A robot waves.", {"dropout_rate": 1.0}, ""),
            ("A robot waves.", {"dropout_rate": 1.0, "dropout_keeps_metadata": True, "append_duration_fps": False},
             "This video is of 192x320 resolution."),
            ('{"actions": []}', {"structured": True, "dropout_rate": 1.0, "dropout_keeps_metadata": True}, ""),
        ],
    )  # fmt: skip
    def test_sentences(self, text: str, changes: dict, expected: str) -> None:
        assert self.render(text, **changes) == expected

    def test_preference(self) -> None:
        assert CAPTION_KEYS == ["caption_json", "qwen3_32b_rewrite-dense", "caption"]
        weights = {"short": 0.1, "descriptive": 0.2, "dense": 0.7, "temporal": 0.0}
        sources = ("qwen3_235b", "qwen3_32b", "qwen3p5_397b")
        assert {f"{source}_{style}": w for source in sources for style, w in weights.items()} == LEGACY_STYLES

    def test_conditioning_is_clamped_below_the_length(self) -> None:
        rng = random.Random(0)
        assert {draw_condition_frames({"2": 1.0}, frames, rng) for frames in (1, 2, 3, 16)} == {0, 1, 2}


class TestVideoVae:
    """The Wan 2.2 VAE: names of the released file, latent statistics, windows of encoding."""

    RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2", "residual.6": "conv2"}

    def test_names(self) -> None:
        table = {
            "encoder.conv1.weight": "encoder.conv_in.weight",
            "decoder.conv1.bias": "decoder.conv_in.bias",
            "conv1.weight": "quant_conv.weight",
            "conv2.bias": "post_quant_conv.bias",
            "encoder.head.0.gamma": "encoder.norm_out.gamma",
            "encoder.head.2.weight": "encoder.conv_out.weight",
            "encoder.middle.1.to_qkv.weight": "encoder.mid_block.attentions.0.to_qkv.weight",
            "encoder.downsamples.1.downsamples.0.shortcut.bias": "encoder.down_blocks.1.resnets.0.conv_shortcut.bias",
            "encoder.downsamples.0.downsamples.2.resample.1.bias": "encoder.down_blocks.0.downsampler.resample.1.bias",
            "encoder.downsamples.1.downsamples.2.time_conv.bias": "encoder.down_blocks.1.downsampler.time_conv.bias",
            "decoder.upsamples.0.upsamples.3.time_conv.weight": "decoder.up_blocks.0.upsampler.time_conv.weight",
            "decoder.upsamples.2.upsamples.3.resample.1.bias": "decoder.up_blocks.2.upsampler.resample.1.bias",
        }
        for part, name in self.RESIDUAL.items():
            table[f"encoder.downsamples.3.downsamples.1.{part}.x"] = f"encoder.down_blocks.3.resnets.1.{name}.x"
            table[f"decoder.upsamples.2.upsamples.2.{part}.x"] = f"decoder.up_blocks.2.resnets.2.{name}.x"
            table[f"decoder.middle.0.{part}.x"] = f"decoder.mid_block.resnets.0.{name}.x"
            table[f"encoder.middle.2.{part}.x"] = f"encoder.mid_block.resnets.1.{name}.x"
        assert {name: released_to_diffusers(name) for name in table} == table

    def test_latent_statistics(self) -> None:
        """Ends of the two published lists, their lengths, and sums that every number enters."""
        assert (len(LATENTS_MEAN), len(LATENTS_STD)) == (48, 48)
        assert (LATENTS_MEAN[:3], LATENTS_MEAN[-3:]) == ([-0.2289, -0.0052, -0.1323], [-0.0548, -0.1681, -0.0667])
        assert (LATENTS_STD[:3], LATENTS_STD[-3:]) == ([0.4765, 1.0364, 0.4514], [0.4089, 0.7468, 0.7744])
        assert sum(i * m for i, m in enumerate(LATENTS_MEAN, 1)) == pytest.approx(-7.6248, abs=1e-9)
        assert sum(i * s for i, s in enumerate(LATENTS_STD, 1)) == pytest.approx(790.8891, abs=1e-9)

    @pytest.mark.parametrize(("tier", "frames"), [("256", 68), ("480", 24), ("720", 8), ("768", 8)])
    def test_windows(self, tier: str, frames: int) -> None:
        for width, height in RESOLUTIONS[tier].values():
            assert window_frames(height, width) == frames, (width, height)


def published_tier(width: int, height: int) -> str:
    """The published rule from a size to the key of the shift table."""
    if (width, height) in TestSizes.TABLE["768"]:
        return "768"
    short = min(width, height)
    return next(tier for limit, tier in ((256, "256"), (640, "480"), (960, "720"), (2048, "768")) if short <= limit)
