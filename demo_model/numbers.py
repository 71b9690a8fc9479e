"""Number tasks: word problems with worked steps, and arithmetic worked out line by line."""

from __future__ import annotations

import random

from demo_model.problem import Problem
from demo_model.words import THINGS

_LARGEST = 20  # no value on the way exceeds it
_GAINS = ("buys", "finds", "wins", "makes")
_LOSSES = ("loses", "sells", "breaks", "uses")


def word_problem(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A story of one to three steps over numbers up to 20; every step is worked out; the answer ends in `#### N`."""
    name, friend = rng.sample(names, 2)
    thing = rng.choice(THINGS) + "s"
    if rng.random() < 0.2:
        return _comparison(rng, name, friend, thing)
    if rng.random() < 0.4:
        a, b = rng.randint(2, 5), rng.randint(2, 4)
        box = rng.choice(("boxes", "bags", "jars"))
        value = a * b
        story = [f"{name} has {a} {box} with {b} {thing} in each."]
        lines = [f"{a} {box} with {b} {thing}: {a} * {b} = {value}."]
        num_events = 1
    else:
        value = rng.randint(2, 10)
        story = [f"{name} has {value} {thing}."]
        lines = [f"{name} {rng.choice(('starts with', 'begins with', 'has'))} {value} {thing}."]
        num_events = rng.randint(1, 3)
    for _ in range(num_events):
        event, sign, n = _event(rng, value, friend)
        after = value + n if sign == "+" else value - n
        story.append(f"{name} {event}.")
        lines.append(f"{name} {event}: {value} {sign} {n} = {after}.")
        value = after
    ask = rng.choice(
        (
            f"How many {thing} does {name} have now?",
            f"How many {thing} are left for {name}?",
            f"With how many {thing} does {name} end up?",
        )
    )
    closing = rng.choice(
        (f"So {name} has {value} {thing}.", f"{name} has {value} {thing} now.", f"That is {value} {thing}.")
    )
    return Problem("word", " ".join((*story, ask)), "\n".join((*lines, closing, f"#### {value}")))


def _event(rng: random.Random, value: int, friend: str) -> tuple[str, str, int]:
    """(what happens, the sign of its effect, how many)."""
    if value > 1 and (rng.random() < 0.5 or value >= _LARGEST - 2):
        n = rng.randint(1, min(value - 1, 9))
        return (f"gives {n} to {friend}" if rng.random() < 0.4 else f"{rng.choice(_LOSSES)} {n}"), "-", n
    n = rng.randint(1, min(_LARGEST - value, 9))
    return (f"gets {n} from {friend}" if rng.random() < 0.4 else f"{rng.choice(_GAINS)} {n} more"), "+", n


def _comparison(rng: random.Random, name: str, friend: str, thing: str) -> Problem:
    """What a second person has, or both together, given how the two differ."""
    a = rng.randint(3, 10)
    is_more = rng.random() < 0.5
    n = rng.randint(1, 9) if is_more else rng.randint(1, a - 1)
    word, sign, b = ("more", "+", a + n) if is_more else ("fewer", "-", a - n)
    story = f"{name} has {a} {thing}. {friend} has {n} {word} than {name}."
    lines = [f"{friend} has {n} {word} than {name}: {a} {sign} {n} = {b}."]
    if rng.random() < 0.5 or a + b > _LARGEST:
        ask = rng.choice((f"How many {thing} does {friend} have?", f"How many {thing} are there for {friend}?"))
        return Problem("word", f"{story} {ask}", "\n".join((*lines, f"#### {b}")))
    ask = rng.choice((f"How many {thing} do they have together?", f"How many {thing} are there in all?"))
    lines.append(f"Together they have {a} + {b} = {a + b}.")
    return Problem("word", f"{story} {ask}", "\n".join((*lines, f"#### {a + b}")))


def arithmetic(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A sum in columns, a chain of sums and differences, or a product, worked out line by line."""
    ask = rng.choice(("What is {}?", "Calculate {}.", "Compute {}.", "How much is {}?"))
    kind = rng.randrange(8)
    if kind < 3:
        return _columns(rng, ask)
    if kind < 6:
        return _chain(rng, ask)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return Problem("arith", ask.format(f"{a} * {b}"), f"{a} * {b} = {a * b}.\n#### {a * b}")


def _columns(rng: random.Random, ask: str) -> Problem:
    """A sum of two numbers of two digits, digit by digit with a carry."""
    while True:
        a, b = rng.randint(10, 89), rng.randint(10, 89)
        if a + b < 100:
            break
    lines: list[str] = []
    carry = 0
    for place, power in (("Ones", 0), ("Tens", 1)):
        x, y = a // 10**power % 10, b // 10**power % 10
        total = x + y + carry
        terms = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        carry = total // 10
        lines.append(f"{place}: {terms} = {total}, write {total % 10}" + (", carry 1." if carry else "."))
    return Problem("arith", ask.format(f"{a} + {b}"), "\n".join((*lines, f"#### {a + b}")))


def _chain(rng: random.Random, ask: str) -> Problem:
    """Two or three sums and differences, from left to right."""
    value = rng.randint(2, 12)
    shown, lines = str(value), []
    for _ in range(rng.randint(2, 3)):
        is_sum = value < 2 or (rng.random() < 0.5 and value < _LARGEST - 9)
        n = rng.randint(1, 9) if is_sum else rng.randint(1, min(value, 9))
        after = value + n if is_sum else value - n
        sign = "+" if is_sum else "-"
        shown += f" {sign} {n}"
        lines.append(f"{value} {sign} {n} = {after}.")
        value = after
    return Problem("arith", ask.format(shown), "\n".join((*lines, f"#### {value}")))


def fact(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A drill of four single equations: what the worked steps are made of. Only trained, never evaluated."""
    facts: list[tuple[str, int]] = []
    for _ in range(4):
        kind = rng.choice((0, 0, 1, 1, 2, 3))
        if kind == 0:
            a = rng.randint(0, _LARGEST - 1)
            b = rng.randint(0, min(_LARGEST - a, 9))
            facts.append((f"{a} + {b}", a + b))
        elif kind == 1:
            a = rng.randint(1, _LARGEST)
            b = rng.randint(0, min(a, 9))
            facts.append((f"{a} - {b}", a - b))
        elif kind == 2:
            a, b = rng.randint(2, 9), rng.randint(2, 9)
            facts.append((f"{a} * {b}", a * b))
        else:
            a, b = rng.randint(0, 9), rng.randint(0, 9)
            facts.append((f"{a} + {b} + 1", a + b + 1))
    prompt = "Complete: " + ", ".join(f"{question} = ?" for question, _ in facts)
    return Problem("fact", prompt, " ".join(f"{question} = {value}." for question, value in facts))
