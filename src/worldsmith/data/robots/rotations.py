"""Encodings of rotations: Euler angles, quaternions, rotation vectors, 6D and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from worldsmith.data.stream.errors import DataError

if TYPE_CHECKING:
    import numpy as np

Encoding = Literal["euler_xyz", "quat_xyzw", "quat_wxyz", "axis_angle", "rot6d", "matrix"]
"""Encoding of a rotation. "euler_xyz": radians about the fixed axes x, y, z in this order; "axis_angle": rotation
vector in radians; "rot6d": first and second column of the matrix; "matrix": its 9 values, row by row."""
WIDTHS: dict[str, int] = dict(zip(get_args(Encoding), (3, 4, 4, 3, 6, 9)))
"""Number of values of each encoding."""


def rotation_matrix(values: np.ndarray, source: str) -> np.ndarray:
    """Returns the rotation matrices [..., 3, 3] of values [..., n] in the encoding `source`, in float64.

    Matrices and 6D values need not be exact: the nearest rotation is used. Quaternions are normalized.

    Raises:
        DataError: If all values of a quaternion are 0.
    """
    import numpy as np

    values = np.asarray(values, np.float64)
    shape, flat = (*values.shape[:-1], 3, 3), values.reshape(-1, values.shape[-1])
    if source == "matrix":
        return nearest_rotation(values.reshape(shape))
    if source == "rot6d":
        first, second = values[..., :3], values[..., 3:]
        return nearest_rotation(np.stack((first, second, np.cross(first, second)), -1))
    from scipy.spatial.transform import Rotation

    if source == "euler_xyz":
        found = Rotation.from_euler("xyz", flat)
    elif source == "axis_angle":
        found = Rotation.from_rotvec(flat)
    else:
        try:
            found = Rotation.from_quat(flat, scalar_first=source == "quat_wxyz")
        except ValueError as error:
            raise DataError(f"a rotation in the encoding {source} is invalid: {error}") from None
    return np.asarray(found.as_matrix()).reshape(shape)


def encode_matrix(matrix: np.ndarray, target: str) -> np.ndarray:
    """Returns rotation matrices [n, 3, 3] as values [n, m] in the encoding `target`; quaternions have w >= 0."""
    import numpy as np

    if target == "matrix":
        return matrix.reshape(-1, 9)
    if target == "rot6d":
        return np.concatenate((matrix[..., 0], matrix[..., 1]), -1)
    from scipy.spatial.transform import Rotation

    rotation = Rotation.from_matrix(matrix)
    if target == "euler_xyz":
        return np.asarray(rotation.as_euler("xyz"))
    if target == "axis_angle":
        return np.asarray(rotation.as_rotvec())
    return np.asarray(rotation.as_quat(canonical=True, scalar_first=target == "quat_wxyz"))


def rotation_angle(matrix: np.ndarray) -> np.ndarray:
    """Returns the angle in radians, 0 to pi, of rotation matrices [..., 3, 3]."""
    import numpy as np

    return np.arccos(np.clip((np.trace(matrix, axis1=-2, axis2=-1) - 1) / 2, -1, 1))


def nearest_rotation(matrix: np.ndarray) -> np.ndarray:
    """Returns the rotation that is nearest to each matrix [..., 3, 3], by singular value decomposition."""
    import numpy as np

    left, _, right = np.linalg.svd(matrix)
    left[..., -1] *= np.linalg.det(left @ right)[..., None]
    return left @ right
