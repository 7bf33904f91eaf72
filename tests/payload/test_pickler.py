"""An error about what cannot be sent names the object, its type, and where in the source a person finds it."""

from __future__ import annotations

import functools
import socket
import types
from collections.abc import Callable
from typing import Any

import pytest

from antifreeze import NotPicklable
from antifreeze.payload._payload import make_payload


class Channel:
    """As connections are: bound to its process."""

    def __reduce__(self) -> Any:
        raise TypeError("no default __reduce__")


DB = Channel()
CHANNELS = {"main": [1, Channel()]}


def read_row(i: int) -> Any:
    return DB, i


def read_channel(i: int) -> Any:
    return [CHANNELS["main"] for _ in range(i)]


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


@around
def decorated(i: int) -> Any:
    return read_row(i)


def first(i: int) -> Any:
    return second(i)


def second(i: int) -> Any:
    return first(i) if i else DB


def enclosed() -> Callable[[], Any]:
    connection = Channel()
    return lambda: connection


class Holder:
    """Has something, and a method."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)

    def method(self) -> Any:
        return read_row(1)


class Getter:
    """Uses it where it is asked for samples."""

    def __getitem__(self, i: int) -> Any:
        return (lambda: read_channel(i))()


class Sharer:
    """Has it for all."""

    cache: dict[str, Any] = {"x": Channel()}  # noqa: RUF012


class Wrapped:
    """Has a property."""

    @property
    def connection(self) -> Any:
        return DB


class Static:
    """Has a function."""

    @staticmethod
    def connection() -> Any:
        return DB


class Derived(Static):
    """Has it from its base."""


class Slotted:
    """Has no ``__dict__``."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = Channel()


class Hidden:
    """Says something else of itself than it has."""

    def __getstate__(self) -> Any:
        return {"secret": (i for i in range(3))}


def late() -> list[Any]:
    items: list[Any] = [(i, "x") for i in range(50_000)]
    items[40_000] = (1, Channel())
    return items


CHANNEL = rf"\(a {__name__}\.Channel\)"
GLOBAL = rf"{CHANNEL}, a global of {__name__} that"
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "an attribute": (lambda: Holder(db=Channel()), rf"dataset\.db {CHANNEL} cannot be sent"),
    "a slot": (Slotted, rf"dataset\.inner {CHANNEL}"),
    "deep in containers": (lambda: Holder(a={"b": [0, (Channel(),)]}), rf"dataset\.a\['b'\]\[1\]\[0\] {CHANNEL}"),
    "late in a list": (lambda: Holder(items=late()), rf"dataset\.items\[40000\]\[1\] {CHANNEL}"),
    "a global of a function": (lambda: Holder(f=read_row), rf"^DB {GLOBAL} read_row uses, cannot be sent"),
    "a dict of a module": (Getter, rf"^CHANNELS\['main'\]\[1\] {GLOBAL} read_channel uses,"),
    "a decorated function": (lambda: decorated, rf"^DB {GLOBAL} read_row uses,"),
    "functions that call each other": (lambda: first, rf"^DB {GLOBAL} second uses,"),
    "a method": (lambda: Holder(f=Holder().method), rf"^DB {GLOBAL} read_row uses,"),
    "a property": (Wrapped, rf"^DB {GLOBAL} Wrapped\.connection uses,"),
    "a static method of a base": (Derived, rf"^DB {GLOBAL} Static\.connection uses,"),
    "a partial function": (lambda: functools.partial(read_row, 1), rf"^DB {GLOBAL} read_row uses,"),
    "what a partial function has": (lambda: functools.partial(print, Channel()), rf"dataset\.args\[0\] {CHANNEL}"),
    "a closure": (enclosed, rf"^connection {CHANNEL}, a variable that enclosed\.<locals>\.<lambda> of line \d+ uses,"),
    "a default argument": (lambda: lambda db=DB: db, rf"^a default argument {CHANNEL} of "),
    "a class attribute": (Sharer, rf"^Sharer\.cache\['x'\] {CHANNEL}, an attribute of class {__name__}\.Sharer,"),
    "a class": (lambda: Wrapped, rf"^DB {GLOBAL} Wrapped\.connection uses,"),
    "what it says of itself": (
        lambda: Holder(x=Hidden()),
        rf"dataset\.x \(a {__name__}\.Hidden\), which holds a generator,",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_the_object_and_where_it_is_used(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(NotPicklable, match=message) as caught:
        make_payload(types.SimpleNamespace(dataset=make()), {__name__})

    assert "TypeError: " in caught.value.message
    assert caught.value.path.startswith("dataset")


def test_a_name_that_is_only_an_attribute_is_not_taken_for_a_global() -> None:
    with socket.socket() as opened, pytest.raises(NotPicklable, match=r"dataset\.s \(a socket\.socket\)"):
        make_payload(types.SimpleNamespace(dataset=Holder(f=lambda x: x.DB, s=opened)), {__name__})


def test_the_hint_of_a_refusal_is_kept(tmp_path: Any) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(NotPicklable) as caught:
        make_payload(types.SimpleNamespace(dataset=Holder(f=file)), {__name__})

    assert "mode 'wb'" in caught.value.message
    assert "mode 'a'" in caught.value.hint
