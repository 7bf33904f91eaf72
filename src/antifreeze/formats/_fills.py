"""Fill values for nulls, checked against the type of their column."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from antifreeze.formats._leaves import ArrowArray, ArrowType, dtype_of, is_text


class Misfit(Exception):
    """A fill value that the type cannot hold."""


def _integer(value: Any) -> int:
    # Arrow would silently truncate 0.5 to 0.
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise Misfit


def _float(value: Any) -> float:
    if isinstance(value, bool | int | float | decimal.Decimal):
        return float(value)
    raise Misfit


def _boolean(value: Any) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise Misfit


def _prepared(arrow_type: ArrowType, value: Any) -> Any:
    """Return the value as the Python type that Arrow converts to the type without loss."""
    if pt.is_boolean(arrow_type):
        return _boolean(value)
    if pt.is_integer(arrow_type):
        return _integer(value)
    if pt.is_floating(arrow_type):
        return _float(value)
    if pt.is_decimal(arrow_type):
        return decimal.Decimal(str(value)) if isinstance(value, float) else value
    if is_text(arrow_type):
        texts = pt.is_string(arrow_type) or pt.is_large_string(arrow_type) or pt.is_string_view(arrow_type)
        if not isinstance(value, str if texts else bytes):
            raise Misfit
    return value


def _ticks(value: np.datetime64 | np.timedelta64, arrow_type: ArrowType) -> np.generic:
    dtype = dtype_of(arrow_type)
    if dtype is None or dtype.kind != value.dtype.kind:
        raise Misfit
    ticks: np.generic = value.astype(dtype)
    return ticks


def filled(arrow_type: ArrowType, value: Any) -> ArrowArray | np.generic:
    """Return the fill value as an Arrow array of length one, or as a NumPy time; raise Misfit if it does not fit."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _ticks(value, arrow_type)
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return pa.array([_prepared(arrow_type, value)], arrow_type)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise Misfit from error


def python_fill(arrow_type: ArrowType, value: Any) -> Any:
    """Return the fill value as the Python object that Arrow gives for it."""
    array = filled(arrow_type, value)
    return array.item() if isinstance(array, np.generic) else array[0].as_py()
