"""The random generators that a loader draws from: their states, saved as text and put back.

A loader draws what torch's loader draws, from the trainer's own generators: the seed of an epoch from ``generator=`` or
from torch's global generator, and whatever its sampler draws, wherever it draws it from. To resume, the sampler runs
again from the states in which its epoch began (``replaying``), and the generators themselves are put where they were
when the state was saved (``put``).

A Mersenne twister has 2.5 KB of state, so a state of the loader has a few KB. The states of the beginning and of the
moment of saving mostly share their words, and then the second costs a few bytes: it is compressed against the first.
"""

from __future__ import annotations

import base64
import binascii
import random
import re
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from antifreeze.loaders._torch_settings import chain_of, draws_globally, generators_of, is_known

_MAX_NBYTES = 1 << 16
"""No generator's state is larger; a text that claims more is damaged."""
_WORDS = 625  # of Python's and NumPy's twister: 624, and the position
_SEED = "seed "  # what follows is all there is to a generator that was just seeded
_NUMBER = re.compile("-?[0-9]{1,20}")
_GAUSS = struct.Struct("<?d")

States = dict[str, bytes]
"""The states of generators, by name."""


def draw_seed(generator: torch.Generator | None) -> int:
    """Return the seed of an epoch, drawn as torch's loader draws its base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


class Generators:
    """The generators that a loader with this ``generator=`` and this sampler may draw from.

    They are torch's global one and those of ``torch.Generator`` that the loader or its sampler holds; with a sampler
    that is user code, also ``random`` and ``numpy.random``.
    """

    def __init__(self, given: torch.Generator | None, sampler: Any) -> None:
        chain = [] if sampler is None else chain_of(sampler)
        self.is_user_code = not all(is_known(s) for s in chain)
        """Whether the sampler may draw from anything, at any time."""
        theirs = [g for g in generators_of(chain) if g.device.type == "cpu"]
        if any(draws_globally(s) for s in chain):
            theirs.insert(0, torch.default_generator)
        mine = torch.default_generator if given is None else given
        names = {id(torch.default_generator): "torch"} | ({} if given is None else {id(given): "generator"})
        self._torch = {names.get(id(g), f"sampler {i}"): g for i, g in enumerate(theirs)}
        self._theirs = set(self._torch)
        self._torch.setdefault(names[id(mine)], mine)

    def states(self) -> States:
        """Return the present states."""
        states = {name: _torch_bytes(generator) for name, generator in self._torch.items()}
        if self.is_user_code:
            _, words, gauss = random.getstate()
            states["random"] = array("I", words).tobytes() + _GAUSS.pack(gauss is not None, gauss or 0.0)
            numpy = np.random.get_state(legacy=False)
            if numpy["bit_generator"] == "MT19937":
                twister = numpy["state"]
                key, position = twister["key"].astype(np.uint32).tobytes(), array("I", [twister["pos"]]).tobytes()
                states["numpy"] = key + position + _GAUSS.pack(bool(numpy["has_gauss"]), numpy["gauss"])
        return states

    def states_for_sampler(self) -> States:
        """Return the present states of what the sampler may draw from."""
        if self.is_user_code:
            return self.states()
        return {name: _torch_bytes(self._torch[name]) for name in self._theirs}

    def put(self, states: States) -> None:
        """Put every generator that is here into its state."""
        for name, raw in states.items():
            if name == "random":
                random.setstate(_twister(name, raw))
            elif name == "numpy":
                np.random.set_state(_twister(name, raw))
            elif name in self._torch:
                self._torch[name].set_state(_torch_generator(raw).get_state())

    @contextmanager
    def replaying(self, states: States) -> Iterator[None]:
        """Have generators continue from earlier states in a ``with`` block, and put them back after it."""
        before = self.states()
        try:
            self.put(states)
            yield
        finally:
            self.put(before)


class Drawn(NamedTuple):
    """What a saved state says of random numbers."""

    seed: int | None = None
    """The base seed of the epoch, or of the workers that stay for the next one."""
    resets: int = 0
    """How many epochs these workers began before, with ``persistent_workers=True``: no seed is drawn for them."""
    is_persistent: bool = False
    began: States | None = None
    """Where generators were when the epoch's sampler was started; None if no epoch had begun."""
    asked: States | None = None
    """Where they were when it was first asked for an index: others may have drawn in between. None if it was not."""
    now: States | None = None
    """Where they were when the state was saved."""


def to_plain(drawn: Drawn) -> dict[str, Any]:
    """Return it as numbers and texts."""
    plain: dict[str, Any] = {"seed": drawn.seed, "resets": drawn.resets, "persistent": drawn.is_persistent}
    moments = {"began": drawn.began, "asked": drawn.asked, "now": drawn.now}
    found = {moment: states for moment, states in moments.items() if states is not None}
    # What user code of a sampler has not drawn from since the epoch began is left out: it would only be large.
    earliest = found.get("now", {}) | found.get("asked", {}) | found.get("began", {})
    unused = {name for name in ("random", "numpy") if earliest.get(name) == found.get("now", {}).get(name)}
    known: States = {}
    for moment, states in found.items():
        new = {name: raw for name, raw in states.items() if name not in unused and raw != known.get(name)}
        plain[moment] = {name: _to_text(name, raw, known.get(name, b"")) for name, raw in new.items()}
        known |= new
    return plain


def from_plain(plain: Mapping[str, Any]) -> Drawn:
    """Return what was saved, which has the form of it. Raises ValueError if a generator's state is damaged."""
    seed, resets = plain["seed"], plain["resets"]
    if seed is None and "began" in plain:
        raise ValueError("an epoch that has begun has a seed")
    known: States = {}
    found: dict[str, States | None] = {}
    for moment in ("began", "asked", "now"):
        known |= {n: _from_text(n, text, known.get(n, b"")) for n, text in plain.get(moment, {}).items()}
        found[moment] = dict(known) if moment in plain else None
    return Drawn(seed, resets, bool(plain["persistent"]), found["began"], found["asked"], found["now"])


# -- one state ------------------------------------------------------------------------------------------------------


def _torch_bytes(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().numpy().tobytes())


def _torch_generator(raw: bytes) -> torch.Generator:
    generator = torch.Generator()
    try:
        generator.set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    except RuntimeError as error:
        raise ValueError(f"not the state of a generator: {error}") from error
    return generator


def _twister(name: str, raw: bytes) -> Any:
    """Return the state of ``random`` or ``numpy.random`` as that library takes it."""
    if len(raw) != 4 * _WORDS + _GAUSS.size:
        raise ValueError(f"the state of {name!r}: expected {4 * _WORDS + _GAUSS.size} bytes, got {len(raw)}")
    words, (has_gauss, gauss) = array("I", raw[: 4 * _WORDS]), _GAUSS.unpack(raw[4 * _WORDS :])
    if words[-1] > _WORDS - 1:
        raise ValueError(f"the state of {name!r} is not one of a Mersenne twister")
    if name == "random":
        return 3, tuple(words), gauss if has_gauss else None
    twister = {"key": np.array(words[:-1], np.uint32), "pos": words[-1]}
    return {"bit_generator": "MT19937", "state": twister, "has_gauss": int(has_gauss), "gauss": gauss}


def _to_text(name: str, raw: bytes, known: bytes = b"") -> str:
    if name not in ("random", "numpy"):
        seed = _torch_generator(raw).initial_seed()
        if raw == _torch_bytes(torch.Generator().manual_seed(seed)):
            return f"{_SEED}{seed}"
    # Torch keeps each 32-bit word in 64 bits: byte by byte, half of the columns are zero and cost nothing.
    compress = zlib.compressobj(1, zdict=_columns(known)) if known else zlib.compressobj(1)
    return base64.urlsafe_b64encode(compress.compress(_columns(raw)) + compress.flush()).decode()


def _from_text(name: str, text: str, known: bytes = b"") -> bytes:
    """Return the state in a text. Raises ValueError if no generator could have it."""
    if text.startswith(_SEED):
        if name in ("random", "numpy") or not _NUMBER.fullmatch(text, len(_SEED)):
            raise ValueError(f"not the state of a generator: expected a seed, got {text[:50]!r}")
        return _torch_bytes(torch.Generator().manual_seed(int(text[len(_SEED) :]) % 2**64))
    expand = zlib.decompressobj(zdict=_columns(known)) if known else zlib.decompressobj()
    try:
        raw = expand.decompress(base64.urlsafe_b64decode(text), _MAX_NBYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"not the state of a generator: {error}") from error
    if not expand.eof:
        raise ValueError("not the state of a generator: it does not end")
    state = _rows(raw)
    if name in ("random", "numpy"):
        _twister(name, state)
    else:
        _torch_generator(state)
    return state


def _columns(raw: bytes) -> bytes:
    return raw if len(raw) % 8 else np.frombuffer(raw, np.uint8).reshape(-1, 8).T.tobytes()


def _rows(columns: bytes) -> bytes:
    return columns if len(columns) % 8 else np.frombuffer(columns, np.uint8).reshape(8, -1).T.tobytes()
