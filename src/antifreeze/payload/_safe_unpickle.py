"""Unpickles values from the trainer only if nothing has to be imported for them."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules:  # a setting is not worth the seconds that some libraries take to import
            raise pickle.UnpicklingError(f"{module} is not imported here")
        return super().find_class(module, name)


def rebuilt(blob: bytes) -> Any:
    """Return a value; raise UnpicklingError if the module of its class is not imported."""
    return _Unpickler(io.BytesIO(blob)).load()
