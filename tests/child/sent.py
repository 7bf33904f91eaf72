"""What a worker gets of objects, without a worker."""

from __future__ import annotations

import types
from typing import Any

from antifreeze.child import UserError, load_program
from antifreeze.crew._parcel import Parcel, make_parcel


def parcel_of(*parts: Any, by_value: str = "") -> Parcel:
    """Return a payload of these; functions and classes of the module ``by_value`` travel by value."""
    return make_parcel(types.SimpleNamespace(parts=parts), {by_value} - {""})


def loaded(parcel: Parcel) -> Any:
    """Return the objects of a payload."""
    try:
        program: Any = load_program(parcel.payload, parcel.fds())
    except UserError as caught:
        raise caught.error from caught
    return program.parts if len(program.parts) > 1 else program.parts[0]


def sent(*parts: Any, by_value: str = "") -> Any:
    """Return what a worker gets of these."""
    parcel = parcel_of(*parts, by_value=by_value)
    try:
        return loaded(parcel)
    finally:
        parcel.close()
