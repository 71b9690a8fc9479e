"""Short Python functions from a signature and a docstring, with the asserts that grade them."""

from __future__ import annotations

import random
from collections.abc import Callable

from demo_model.problem import Problem

_Family = Callable[[random.Random], tuple[str, str, str, str, list[tuple[str, object]]]]
_ARGUMENTS = ("x", "n", "value", "number", "a")
_LISTS = ("values", "numbers", "items", "data")
_TEXTS = ("text", "word", "s", "name")


def function(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A signature with docstring; the answer is the body."""
    name, argument, doc, body, cases = rng.choice(_FAMILIES)(rng)
    prompt = f'def {name}({argument}):\n    """{doc}"""\n'
    tests = tuple(f"assert {name}({call}) == {expected!r}" for call, expected in cases)
    return Problem("code", prompt, body, tests)


def _constant(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    x, c = rng.choice(_ARGUMENTS), rng.randint(2, 20)
    word, sign = rng.choice((("plus", "+"), ("minus", "-"), ("times", "*")))
    stem = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
    name = rng.choice((f"{stem}_{c}", stem, f"{stem}_number"))
    cases: list[tuple[str, object]] = [(str(v), {"+": v + c, "-": v - c, "*": v * c}[sign]) for v in (0, 3, 11)]
    return name, x, f"Return {x} {word} {c}.", f"    return {x} {sign} {c}", cases


def _test_number(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    x, c = rng.choice(_ARGUMENTS), rng.randint(2, 20)
    kind = rng.randrange(4)
    if kind == 0:
        return "is_even", x, f"Return True if {x} is even.", f"    return {x} % 2 == 0", [("4", True), ("7", False)]
    if kind == 1:
        return "is_odd", x, f"Return True if {x} is odd.", f"    return {x} % 2 == 1", [("4", False), ("7", True)]
    word, sign = (("greater", ">"), ("less", "<"))[kind - 2]
    cases: list[tuple[str, object]] = [(str(v), v > c if sign == ">" else v < c) for v in (c - 1, c, c + 1)]
    return f"is_{word}", x, f"Return True if {x} is {word} than {c}.", f"    return {x} {sign} {c}", cases


def _power(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    x = rng.choice(_ARGUMENTS)
    kind = rng.randrange(3)
    if kind == 0:
        return "square", x, f"Return the square of {x}.", f"    return {x} * {x}", [("3", 9), ("-2", 4)]
    if kind == 1:
        return "cube", x, f"Return the cube of {x}.", f"    return {x} * {x} * {x}", [("3", 27), ("-2", -8)]
    return "absolute", x, f"Return the absolute value of {x}.", f"    return abs({x})", [("3", 3), ("-2", 2)]


def _of_list(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    v = rng.choice(_LISTS)
    table: tuple[tuple[str, str, str, Callable[[list[int]], object]], ...] = (
        ("largest", f"Return the largest of {v}.", f"max({v})", max),
        ("smallest", f"Return the smallest of {v}.", f"min({v})", min),
        ("count", f"Return how many {v} there are.", f"len({v})", len),
        ("sort", f"Return {v} sorted.", f"sorted({v})", sorted),
        ("first", f"Return the first of {v}.", f"{v}[0]", lambda values: values[0]),
        ("last", f"Return the last of {v}.", f"{v}[-1]", lambda values: values[-1]),
        ("backwards", f"Return {v} reversed.", f"{v}[::-1]", lambda values: values[::-1]),
    )
    name, doc, expression, right = rng.choice(table)
    return name, v, doc, f"    return {expression}", [(str(c), right(c)) for c in ([3, 1, 2], [5, 9])]


def _loop(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    v = rng.choice(_LISTS)
    if rng.randrange(2):
        body = f"    total = 0\n    for item in {v}:\n        total += item\n    return total"
        return "total", v, f"Return the sum of {v} with a loop.", body, [("[1, 2, 3]", 6), ("[]", 0)]
    body = f"    result = 1\n    for item in {v}:\n        result *= item\n    return result"
    return "product", v, f"Return the product of {v} with a loop.", body, [("[1, 2, 3]", 6), ("[]", 1)]


def _branches(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    x, c = rng.choice(_ARGUMENTS), rng.randint(2, 20)
    kind = rng.randrange(4)
    if kind == 0:
        doc = f'Return "high" if {x} is greater than {c}, else "low".'
        body = f'    if {x} > {c}:\n        return "high"\n    return "low"'
        return "level", x, doc, body, [(str(v), "high" if v > c else "low") for v in (c - 1, c, c + 1)]
    if kind == 1:
        doc = f"Return {x}, but at most {c}."
        body = f"    if {x} > {c}:\n        return {c}\n    return {x}"
        return "limit", x, doc, body, [(str(v), min(v, c)) for v in (c - 1, c, c + 5)]
    if kind == 2:
        doc = f'Return "positive", "negative" or "zero" for {x}.'
        body = (
            f'    if {x} > 0:\n        return "positive"\n    if {x} < 0:\n        return "negative"\n    return "zero"'
        )
        return "sign", x, doc, body, [("3", "positive"), ("-2", "negative"), ("0", "zero")]
    doc = f"Return the factorial of {x}."
    body = f"    result = 1\n    for i in range(2, {x} + 1):\n        result *= i\n    return result"
    return "factorial", x, doc, body, [("0", 1), ("3", 6), ("5", 120)]


def _counting(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    v, c = rng.choice(_LISTS), rng.randint(2, 20)
    kind = rng.randrange(5)
    if kind == 0:
        word, sign = rng.choice((("greater", ">"), ("less", "<")))
        data = [c - 1, c, c + 1, c + 5]
        right = sum(item > c if sign == ">" else item < c for item in data)
        body = (
            f"    count = 0\n    for item in {v}:\n        if item {sign} {c}:\n"
            "            count += 1\n    return count"
        )
        doc = f"Return how many {v} are {word} than {c}."
        return f"count_{word}", v, doc, body, [(str(data), right), ("[]", 0)]
    if kind == 1:
        body = (
            f"    total = 0\n    for item in {v}:\n        if item % 2 == 0:\n"
            "            total += item\n    return total"
        )
        return "sum_even", v, f"Return the sum of the even {v}.", body, [("[1, 2, 4]", 6), ("[3]", 0)]
    if kind == 2:
        body = f"    if len({v}) == 0:\n        return 0\n    return sum({v}) / len({v})"
        return "mean", v, f"Return the mean of {v}, or 0 if there are none.", body, [("[1, 2, 3]", 2.0), ("[]", 0)]
    if kind == 3:
        doc = f"Return {v} without repeats, in order."
        body = (
            f"    result = []\n    for item in {v}:\n        if item not in result:\n"
            "            result.append(item)\n    return result"
        )
        return "unique", v, doc, body, [("[1, 2, 1]", [1, 2]), ("[]", [])]
    doc = f"Return {v} with {c} added to every item."
    body = f"    result = []\n    for item in {v}:\n        result.append(item + {c})\n    return result"
    return f"add_{c}_to_all", v, doc, body, [("[1, 2]", [1 + c, 2 + c]), ("[]", [])]


def _filter(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    v, c = rng.choice(_LISTS), rng.randint(2, 20)
    word, sign = rng.choice((("greater", ">"), ("less", "<")))
    data = [c - 1, c, c + 1, c + 5]
    right = [item for item in data if (item > c if sign == ">" else item < c)]
    body = f"    return [item for item in {v} if item {sign} {c}]"
    return f"keep_{word}", v, f"Return the {v} that are {word} than {c}.", body, [(str(data), right), ("[]", [])]


def _text(rng: random.Random) -> tuple[str, str, str, str, list[tuple[str, object]]]:
    t = rng.choice(_TEXTS)
    table: tuple[tuple[str, str, str, Callable[[str], object]], ...] = (
        ("shout", f"Return {t} in upper case.", f"{t}.upper()", str.upper),
        ("whisper", f"Return {t} in lower case.", f"{t}.lower()", str.lower),
        ("backwards", f"Return {t} reversed.", f"{t}[::-1]", lambda text: text[::-1]),
        ("length", f"Return the length of {t}.", f"len({t})", len),
        ("twice", f"Return {t} twice.", f"{t} * 2", lambda text: text * 2),
    )
    name, doc, expression, right = rng.choice(table)
    return name, t, doc, f"    return {expression}", [(repr(c), right(c)) for c in ("Abc", "hello")]


_FAMILIES: tuple[_Family, ...] = (
    _constant,
    _test_number,
    _power,
    _of_list,
    _loop,
    _branches,
    _counting,
    _filter,
    _text,
)
