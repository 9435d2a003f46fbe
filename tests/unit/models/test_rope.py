"""Positions and rotary tables: the worked example of the format and an independent slot-by-slot table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.families.cosmos3.network.rope import (
    Rotary,
    apply_rotary,
    count_within,
    rotary_tables,
    text_positions,
    video_positions,
)


@pytest.mark.parametrize(
    ("fps", "times"),
    [
        (24.0, [15100, 15101, 15102]),
        (16.0, [15100, 15101.5, 15103]),
        (8.0, [15100, 15103, 15106]),
        (None, [15100, 15101, 15102]),
    ],
)
def test_latent_frames_advance_by_24_over_fps_from_text_length_plus_margin(fps, times):
    positions = video_positions([(3, 2, 2)], [100], [fps], tiny())
    assert positions.dtype == torch.float32
    assert positions[0].view(3, 4)[:, 0].tolist() == times
    assert positions[1].tolist() == [0, 0, 1, 1] * 3
    assert positions[2].tolist() == [0, 1, 0, 1] * 3


def test_each_sample_of_a_pack_has_the_positions_of_its_own():
    grids, lengths, rates = [(2, 3, 1), (1, 1, 4), (4, 2, 2)], [3, 20, 7], [30.0, None, 29.97]
    together = video_positions(grids, lengths, rates, tiny())
    alone = [video_positions([g], [n], [f], tiny()) for g, n, f in zip(grids, lengths, rates)]
    assert torch.equal(together, torch.cat(alone, dim=1))
    assert text_positions([2, 3]).tolist() == [[0, 1, 0, 1, 2]] * 3


def test_modulation_off_ignores_fps_and_kept_spatial_ids_start_at_the_offset():
    fixed = replace(tiny(), enable_fps_modulation=False, unified_3d_mrope_temporal_modality_margin=10)
    assert video_positions([(3, 1, 1)], [5], [8.0], fixed)[0].tolist() == [15, 16, 17]
    kept = replace(fixed, unified_3d_mrope_reset_spatial_ids=False)
    assert video_positions([(1, 1, 3)], [5], [8.0], kept)[2].tolist() == [15, 16, 17]


def test_tables_take_each_slot_from_its_axis():
    positions = torch.tensor([[15000.5, 7], [3, 2], [5, 11]])
    cos, sin = rotary_tables(positions, 64, 5e6, [12, 10, 10])
    for slot in range(32):
        axis = slot % 3 if slot < 30 else 0
        frequency = 1.0 / torch.tensor(5e6).pow(torch.tensor(2 * slot / 64))
        for token in range(2):
            angle = positions[axis, token] * frequency
            for half in (slot, slot + 32):
                assert abs(cos[token, 0, half] - angle.cos()) < 2e-3  # one rounding of an angle near 15000
                assert abs(sin[token, 0, half] - angle.sin()) < 2e-3


def test_rotation_is_a_complex_product_of_the_two_halves():
    x, angles = torch.randn(5, 2, 8), torch.randn(5, 1, 4)
    full = torch.cat((angles, angles), dim=-1)
    rotated = apply_rotary(x, Rotary(full.cos(), full.sin()))
    expected = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotated, torch.cat((expected.real, expected.imag), -1))


def test_count_within_restarts_for_each_length():
    assert count_within([3, 0, 2]).tolist() == [0, 1, 2, 0, 1]
