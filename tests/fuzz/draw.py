"""Inputs for decoders: random bytes, and valid ones that were damaged as bytes or as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect

NUMBERS = (0, 1, -1, 2, 63, 255, 2**31, 2**32, 2**53 - 1, 2**53, -(2**53), 2**63, 2**64, 10**30)
TEXTS = ("", "a", "0" * 64, "f" * 64, "5a" * 64, "5a" * 80, "\x00", "é" * 40, "x" * 70_000, "12D3KooW" + "1" * 44)
KEY = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


class Draw(random.Random):
    """One input's randomness."""

    def bytes_like(self, samples: Sequence[bytes]) -> bytes:
        """Return random bytes, or a sample damaged in one way or another."""
        style = self.randrange(12)
        if style == 0:
            return self.randbytes(self.choice((0, 1, 7, 64, 300, 4_000)))
        sample = self.choice(samples)
        if style <= 3:
            return self._json(sample)
        return self._damaged(sample, style, samples)

    def _damaged(self, sample: bytes, style: int, samples: Sequence[bytes]) -> bytes:
        at, end = sorted((self.randrange(len(sample) + 1), self.randrange(len(sample) + 1)))
        match style:
            case 4:
                return sample[:at]
            case 5:
                return sample[:at] + sample[end:]
            case 6:
                return sample[:end] + sample[at:]
            case 7:
                return sample[:at] + self.choice(samples)[at:]
            case 8:
                return sample[:at] + b"[" * self.choice((10, 5_000)) + sample[at:]
        altered = bytearray(sample)
        for _ in range(self.choice((1, 1, 2, 8))):
            if altered:
                place = self.randrange(len(altered))
                altered[place] = self.randrange(256) if style < 11 else self.choice(b'0123456789abcdef",:{}[]-.eE\\')
        return bytes(altered)

    def _json(self, sample: bytes) -> bytes:
        try:
            value = json.loads(sample)
        except ValueError:
            return sample[::-1]
        for _ in range(self.choice((1, 1, 2, 3))):
            value = self.altered(value)
        return canonical(value)

    def altered(self, value: Any) -> Any:
        """Return a JSON value with one place in it changed."""
        if isinstance(value, dict) and value and self.random() < 0.9:
            name = self.choice(list(value))
            if self.random() < 0.08:
                return {key: item for key, item in value.items() if key != name}
            return value | {name: self.altered(value[name])}
        if isinstance(value, list) and value and self.random() < 0.9:
            place = self.randrange(len(value))
            if self.random() < 0.15:
                return value[:place] + value[place + 1 :] if self.random() < 0.5 else value[: place + 1] + value[place:]
            return [*value[:place], self.altered(value[place]), *value[place + 1 :]]
        return self.value(value)

    def fields(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return some fields of an object with other values."""
        return {name: self.value(value[name]) for name in value if self.random() < 0.2}

    def value(self, before: Any) -> Any:
        """Return another value, mostly of the same type."""
        if self.random() < 0.1:
            return self.choice((None, True, [], {}, [[]] * 600, {"a": 1}, *NUMBERS, *TEXTS))
        if isinstance(before, int):
            return self.choice((*NUMBERS, before + 1, before - 1, before * 2))
        if isinstance(before, str):
            return self.choice((*TEXTS, KEY, before[:-1], before + "0", before[::-1], before.upper()))
        return self.choice((None, [before] * 3, before))


def canonical(value: Any) -> bytes:
    """Return the sorted JSON of a value; of what has none, some other bytes."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except (UnicodeError, OverflowError, RecursionError, msgspec.MsgspecError):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode(errors="replace")


# ---- valid values of record types

_PATTERNS = {
    r"\A[0-9a-f]{32}\Z": "5a" * 16,
    r"\A[0-9a-f]{64}\Z": "5a" * 32,
    r"\A([0-9a-f]{64})?\Z": "5a" * 32,
    r"\A[0-9a-f]{128}\Z": "5a" * 64,
    r"\A[0-9a-f]{160}\Z": "5a" * 80,
    r"\A([0-9a-f]{160})?\Z": "",
    r"\A12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\Z": KEY,
}


def example(kind: Any) -> Any:
    """Return a valid value of a record type, as JSON would hold it."""
    return _example(msgspec.inspect.type_info(kind))


def _example(kind: Any) -> Any:
    match type(kind).__name__:
        case "StructType":
            fields = {field.encode_name: _example(field.type) for field in kind.fields}
            return fields if kind.tag is None else fields | {kind.tag_field: kind.tag}
        case "IntType":
            return max(kind.ge or 0, 1 if kind.le is None or kind.le >= 1 else 0)
        case "StrType":
            return _text(kind)
        case "BoolType":
            return True
        case "VarTupleType" | "ListType":
            return [_example(kind.item_type)] * max(1, kind.min_length or 0)
        case "TupleType":
            return [_example(each) for each in kind.item_types]
        case "UnionType":
            return _example(next(each for each in kind.types if type(each).__name__ != "NoneType"))
        case "DictType":
            return {}
    return {}


def _text(kind: Any) -> str:
    if kind.pattern is None:
        return "x" * max(1, kind.min_length or 0)
    known = _PATTERNS.get(kind.pattern)
    if known is not None:
        return known
    words = kind.pattern.removeprefix(r"\A").removesuffix(r"\Z").strip("()").split("|")
    return words[0] if words[0].replace("-", "").isalnum() else "a"


Run = Callable[[Draw], None]


@dataclass(frozen=True)
class Target:
    """One decoder: ``prepare`` returns what makes and reads one input; others than ``allowed`` errors are bugs."""

    name: str
    prepare: Callable[[], Run]
    allowed: tuple[type[Exception], ...]
    weight: float = 1.0
