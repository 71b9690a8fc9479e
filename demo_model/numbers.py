"""Number tasks: word problems with worked steps, and arithmetic with worked columns."""

from __future__ import annotations

import random

from demo_model.problem import Problem
from demo_model.words import THINGS


def word_problem(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A story of one or two steps over numbers up to 20; the answer ends in `#### N`."""
    name, friend = rng.sample(names, 2)
    thing = rng.choice(THINGS) + "s"
    kind = rng.randrange(7)
    a, b = rng.randint(2, 10), rng.randint(2, 9)
    total = a + b
    if kind == 0:
        c = rng.randint(1, total - 1)
        story = f"{name} has {a} {thing}. {name} buys {b} more and then gives {c} to {friend}. "
        steps, result = f"{a} + {b} = {total}. {total} - {c} = {total - c}.", total - c
    elif kind == 1:
        c = rng.randint(1, a - 1)
        story = f"{name} has {a} {thing}. {name} loses {c} and finds {b}. "
        steps, result = f"{a} - {c} = {a - c}. {a - c} + {b} = {a - c + b}.", a - c + b
    elif kind == 2:
        story = f"{name} has {a} {thing} and {friend} gives {name} {b} more. "
        steps, result = f"{a} + {b} = {total}.", total
    elif kind == 3:
        story = f"{name} has {total} {thing} and sells {b} of them to {friend}. "
        steps, result = f"{total} - {b} = {a}.", a
    elif kind == 4:
        a, b = rng.randint(2, 5), rng.randint(2, 5)
        c = rng.randint(1, min(9, a * b - 1))
        story = f"{name} has {a} boxes with {b} {thing} in each box. {name} gives {c} {thing} to {friend}. "
        steps, result = f"{a} * {b} = {a * b}. {a * b} - {c} = {a * b - c}.", a * b - c
    elif kind == 5:
        a, b, c = rng.randint(2, 5), rng.randint(2, 5), rng.randint(1, 9)
        story = f"{name} buys {a} bags with {b} {thing} in each bag and finds {c} more. "
        steps, result = f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}.", a * b + c
    else:
        story = f"{name} has {a} {thing}. {friend} has {b} more than {name}. "
        ask = rng.choice((f"How many {thing} does {friend} have?", f"How many {thing} are there for {friend}?"))
        return Problem("word", story + ask, f"{a} + {b} = {total}.\n#### {total}")
    ask = rng.choice(
        (
            f"How many {thing} does {name} have now?",
            f"How many {thing} are left for {name}?",
            f"With how many {thing} does {name} end up?",
        )
    )
    return Problem("word", story + ask, f"{steps}\n#### {result}")


def arithmetic(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A sum or difference of numbers up to 99 in columns, or a product of the small table."""
    ask = rng.choice(("What is {}?", "Calculate {}.", "Compute {}.", "How much is {}?"))
    kind = rng.randrange(4)
    if kind == 0:
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        return Problem("arith", ask.format(f"{a} * {b}"), f"{a} * {b} = {a * b}.\n#### {a * b}")
    if kind == 1:
        a = rng.randint(2, 18)
        b = rng.randint(1, min(a, 9))
        return Problem("arith", ask.format(f"{a} - {b}"), f"{a} - {b} = {a - b}.\n#### {a - b}")
    while True:
        (a1, a0), (b1, b0) = ((rng.randint(1, 8), rng.randint(0, 9)) for _ in range(2))
        carry = (a0 + b0) // 10
        if a1 + b1 + carry <= 9:
            break
    a, b = 10 * a1 + a0, 10 * b1 + b0
    ones = f"{a0} + {b0} = {a0 + b0}."
    tens = f"{a1} + {b1} + {carry} = {a1 + b1 + carry}."
    return Problem("arith", ask.format(f"{a} + {b}"), f"{ones} {tens}\n#### {a + b}")


def fact(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A drill of three single equations: what the worked steps are made of. Only trained, never evaluated."""
    facts = []
    for _ in range(3):
        kind = rng.randrange(4)
        if kind == 0:
            a, b = rng.randint(0, 20), rng.randint(0, 9)
            facts.append((f"{a} + {b}", a + b))
        elif kind == 1:
            a = rng.randint(1, 25)
            b = rng.randint(0, min(a, 19))
            facts.append((f"{a} - {b}", a - b))
        elif kind == 2:
            a, b = rng.randint(2, 9), rng.randint(2, 9)
            facts.append((f"{a} * {b}", a * b))
        else:
            a, b, c = rng.randint(1, 8), rng.randint(1, 8), rng.randint(0, 1)
            facts.append((f"{a} + {b} + {c}", a + b + c))
    prompt = "Complete: " + ", ".join(f"{question} = ?" for question, _ in facts)
    return Problem("fact", prompt, " ".join(f"{question} = {value}." for question, value in facts))
