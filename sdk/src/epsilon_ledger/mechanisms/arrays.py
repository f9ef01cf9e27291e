"""Model parameters as one vector: an array, a sequence or a dictionary of arrays."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Array | Sequence[Array] | Mapping[str, Array]
"""One array, several in a fixed order, or several by name."""

Rows: TypeAlias = Array | Sequence[Array] | Mapping[str, Array]
"""The same with a first axis for the examples; a list of rows also counts as an array."""


def parts_of(arrays: Arrays) -> list[Array]:
    """List the arrays in the order of the vector, without copying.

    Raises:
        ValueError: there is none, or one is not an array of real numbers.
    """
    if isinstance(arrays, np.ndarray):
        parts = [arrays]
    else:
        parts = list(arrays.values() if isinstance(arrays, Mapping) else arrays)
    for part in parts:
        if getattr(part, "dtype", np.dtype(object)).kind not in "fiu":
            raise ValueError(
                f"Found {type(part).__name__} {getattr(part, 'dtype', '')} where a numpy array of real numbers is "
                "expected: give one array, a list of arrays, or a dictionary of arrays."
            )
    if not parts:
        raise ValueError("There is no array here: give at least one.")
    return parts


def flat(parts: Sequence[Array]) -> NDArray[np.float64]:
    """Concatenate arrays of any shapes to a new vector of floats."""
    return np.concatenate([part.ravel() for part in parts], dtype=np.float64)


def split(vector: NDArray[np.float64], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float64]]:
    """Split a vector into views of the given shapes."""
    ends = np.cumsum([prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


def shaped_like(
    arrays: Arrays, parts: list[NDArray[np.float64]]
) -> NDArray[np.float64] | list[NDArray[np.float64]] | dict[str, NDArray[np.float64]]:
    """Return parts as an array, list or dictionary like `arrays`."""
    if isinstance(arrays, np.ndarray):
        return parts[0]
    return dict(zip(arrays, parts, strict=True)) if isinstance(arrays, Mapping) else parts


def rows_of(gradients: Rows | None, arrays: Arrays, count: int) -> list[Array]:
    """Return each array's gradients as (count, size of the parameter), in the order of `parts_of`.

    Args:
        gradients: shaped as `arrays` with a first axis of `count` rows; for `count` 0 anything empty, or None.
        arrays: the parameters.
        count: number of rows.

    Raises:
        ValueError: the number of rows or a shape differs.
        TypeError: a list of parameters needs a list of gradients.
    """
    parts = parts_of(arrays)
    if count == 0 and _is_empty(gradients):
        return [np.empty((0, part.size)) for part in parts]
    given = _in_order_of(gradients, arrays)
    if len(given) != len(parts):
        raise ValueError(f"There are gradients of {len(given)} arrays, but the parameters are {len(parts)} arrays.")
    rows = []
    for place, (gradient, part) in enumerate(zip(given, parts, strict=True)):
        found = np.asarray(gradient)
        if found.shape != (count, *part.shape) or found.dtype.kind not in "fiu":
            raise ValueError(
                f"The gradients of array {place} have the shape {found.shape} and the type {found.dtype}, but real "
                f"numbers of the shape {(count, *part.shape)} are expected: one row for each member of the sample."
            )
        rows.append(found.reshape(count, part.size))
    return rows


def _is_empty(gradients: Rows | None) -> bool:
    if gradients is None or isinstance(gradients, np.ndarray):
        return gradients is None or gradients.size == 0
    return all(np.size(part) == 0 for part in (gradients.values() if isinstance(gradients, Mapping) else gradients))


def _in_order_of(gradients: Rows | None, arrays: Arrays) -> list[Rows]:
    if isinstance(arrays, Mapping):
        if not isinstance(gradients, Mapping) or gradients.keys() != arrays.keys():
            raise ValueError(
                f"The parameters have the names {sorted(arrays)}: give a dictionary of gradients with these."
            )
        return [gradients[name] for name in arrays]
    if gradients is None or isinstance(gradients, Mapping):
        raise ValueError(f"Gradients are {type(gradients).__name__}, but they are expected shaped as the parameters.")
    if isinstance(arrays, np.ndarray):
        return [gradients]
    if not isinstance(gradients, Sequence):
        raise TypeError("The parameters are several arrays: give their gradients as a list of arrays in that order.")
    return list(gradients)
