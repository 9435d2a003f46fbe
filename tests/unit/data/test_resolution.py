from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.clips.clip_frames import cover_and_crop
from worldsmith.data.clips.resolution import (
    RESOLUTIONS,
    TIERS,
    aspect_bucket,
    check_resolution,
    check_tier,
    target_size,
)


def test_published_entries_are_width_by_height() -> None:
    """Check values of the published table."""
    assert target_size("256", 1280, 720) == (320, 192)
    assert target_size("256", 720, 1280) == (192, 320)
    assert target_size("480", 640, 480) == (736, 544)
    assert target_size("704", 1280, 704) == (1280, 704)
    assert target_size("720", 480, 640) == (832, 1104)
    assert target_size("768", 500, 500) == (1024, 1024)
    assert RESOLUTIONS["480"]["2,3"] == (512, 768)


@pytest.mark.parametrize(
    ("width", "height", "bucket"),
    [(649, 1000, "9,16"), (65, 100, "3,4"), (87, 100, "3,4"), (88, 100, "1,1"), (115, 100, "1,1"), (116, 100, "4,3"),
     (154, 100, "4,3"), (155, 100, "16,9"), (720, 480, "4,3"), (640, 512, "4,3")],
)  # fmt: skip
def test_aspect_buckets_change_at_the_published_limits(width: int, height: int, bucket: str) -> None:
    assert aspect_bucket(width, height) == bucket


def test_tiers_that_the_vae_cannot_encode_are_refused_with_the_sizes() -> None:
    assert [t for t in RESOLUTIONS if t not in TIERS] == ["1080", "2048", "gt_2048"]
    with pytest.raises(ValueError, match="1920x1080"):
        check_tier("1080")
    with pytest.raises(ValueError, match="choose one of 64, 96"):
        check_tier("257")


def test_one_size_for_all_clips_is_written_as_width_x_height() -> None:
    check_resolution("720x480")
    check_resolution("480")
    assert target_size("720x480", 500, 900) == (720, 480)
    with pytest.raises(ValueError, match=r"multiples of 16 pixels.*write e.g. '720x464'"):
        check_resolution("720x470")
    for wrong in ("720x", "720 x 480", "0x480", "-720x480"):
        with pytest.raises(ValueError, match="choose one of 64, 96"):
            check_resolution(wrong)


@given(st.integers(1, 8000), st.integers(1, 8000), st.sampled_from(TIERS))
def test_resize_covers_the_target_and_the_crop_lies_inside(width: int, height: int, tier: str) -> None:
    """The resized picture covers the target, one side fits exactly, and the crop is centred to within a pixel."""
    target = target_size(tier, width, height)
    g = cover_and_crop(width, height, target)
    assert g.width >= target[0]
    assert g.height >= target[1]
    assert g.width == target[0] or g.height == target[1]
    for start, whole, cut in ((g.left, g.width, g.crop_width), (g.top, g.height, g.crop_height)):
        assert 0 <= start <= whole - cut
        assert abs(start - (whole - cut) / 2) <= 0.5


@given(st.integers(200, 4000), st.integers(200, 4000))
def test_the_aspect_is_kept_to_a_pixel(width: int, height: int) -> None:
    g = cover_and_crop(width, height, (320, 192))
    assert abs(g.width - width * max(320 / width, 192 / height)) <= 0.5 + 1e-6
    assert abs(g.height - height * max(320 / width, 192 / height)) <= 0.5 + 1e-6
