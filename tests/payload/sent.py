"""What a worker gets of objects, without a worker."""

from __future__ import annotations

import types
from typing import Any

from antifreeze.payload._payload import Payload, make_payload
from antifreeze.worker import UserError, load_program


def payload_of(*parts: Any, by_value: str = "") -> Payload:
    """Return a payload of these; functions and classes of the module ``by_value`` travel by value."""
    return make_payload(types.SimpleNamespace(parts=parts), {by_value} - {""})


def loaded(payload: Payload) -> Any:
    """Return the objects of a payload."""
    try:
        program: Any = load_program(payload.layout, payload.fds())
    except UserError as caught:
        raise caught.error from caught
    return program.parts if len(program.parts) > 1 else program.parts[0]


def sent(*parts: Any, by_value: str = "") -> Any:
    """Return what a worker gets of these."""
    payload = payload_of(*parts, by_value=by_value)
    try:
        return loaded(payload)
    finally:
        payload.close()
