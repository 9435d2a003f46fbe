"""Rotations agree with SciPy in all encodings, and survive the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from worldsmith.data.robots.rotations import WIDTHS, encode_matrix, rotation_angle, rotation_matrix
from worldsmith.data.stream.errors import DataError

angles = st.lists(st.floats(-3.1, 3.1, allow_nan=False), min_size=3, max_size=3)


def by_scipy(rotation: Rotation, encoding: str) -> np.ndarray:
    matrix = rotation.as_matrix()
    return {
        "euler_xyz": lambda: rotation.as_euler("xyz"),
        "quat_xyzw": lambda: rotation.as_quat(canonical=True),
        "quat_wxyz": lambda: np.roll(rotation.as_quat(canonical=True), 1, -1),
        "axis_angle": rotation.as_rotvec,
        "rot6d": lambda: np.concatenate((matrix[..., 0], matrix[..., 1]), -1),
        "matrix": lambda: matrix.reshape(-1, 9),
    }[encoding]()


@pytest.mark.parametrize("encoding", WIDTHS)
def test_every_encoding_is_that_of_scipy(encoding: str) -> None:
    rotations = Rotation.concatenate([Rotation.random(500, rng=0), Rotation.from_rotvec(np.eye(3) * 1e-9)])
    expected = by_scipy(rotations, encoding)
    assert np.allclose(encode_matrix(rotations.as_matrix(), encoding), expected, atol=1e-9)
    assert np.allclose(rotation_matrix(expected, encoding), rotations.as_matrix(), atol=1e-9)
    assert expected.shape[-1] == WIDTHS[encoding]


@settings(max_examples=60, deadline=None)
@given(angles, st.sampled_from(list(WIDTHS)), st.sampled_from(list(WIDTHS)))
def test_a_rotation_survives_the_way_through_another_encoding(euler: list[float], one: str, other: str) -> None:
    start = matrix = rotation_matrix(np.array([euler]), "euler_xyz")
    for encoding in (one, other, one):
        matrix = rotation_matrix(encode_matrix(matrix, encoding), encoding)
    assert np.allclose(matrix, start, atol=1e-6)


@pytest.mark.parametrize("pitch", [np.pi / 2, -np.pi / 2])
def test_euler_angles_at_the_gimbal_lock_give_the_same_rotation(pitch: float) -> None:
    matrix = rotation_matrix(np.array([[0.4, pitch, 0.9]]), "euler_xyz")
    again = rotation_matrix(encode_matrix(matrix, "euler_xyz"), "euler_xyz")
    assert np.allclose(again, matrix, atol=1e-7)


def test_an_inexact_matrix_becomes_the_nearest_rotation() -> None:
    noisy = np.eye(3) + np.random.default_rng(0).normal(0, 0.05, (20, 3, 3))
    found = rotation_matrix(noisy.reshape(-1, 9), "matrix")
    assert np.allclose(found, Rotation.from_matrix(noisy).as_matrix(), atol=1e-9)
    mirrored = rotation_matrix(np.diag([1.0, 1.0, -1.0]).reshape(9), "matrix")
    assert np.linalg.det(mirrored) == pytest.approx(1.0)


def test_angles_are_those_of_scipy() -> None:
    rotations = Rotation.random(100, rng=1)
    assert np.allclose(rotation_angle(rotations.as_matrix()), rotations.magnitude(), atol=1e-7)


def test_a_quaternion_of_zeros_is_refused() -> None:
    with pytest.raises(DataError, match="quat_xyzw"):
        rotation_matrix(np.zeros((2, 4)), "quat_xyzw")
