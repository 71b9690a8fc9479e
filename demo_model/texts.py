"""Text tasks: lists, JSON records, questions about a passage."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from typing import Final

from demo_model.problem import Problem
from demo_model.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, SHORT_WORDS, invented_name


def list_task(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """Sort, reverse, pick from, count or write out a list."""
    kind = rng.randrange(10)
    numbers = rng.sample(range(1, 10), rng.randint(3, 5))
    shown = _joined(numbers)
    if kind == 0:
        return Problem("list", f"Sort these numbers: {shown}.", _joined(sorted(numbers)))
    if kind == 1:
        words = rng.sample(SHORT_WORDS, rng.randint(3, 5))
        return Problem("list", f"Reverse this list: {_joined(words)}.", _joined(words[::-1]))
    if kind == 2:
        return Problem("list", f"What is the largest number in {shown}?", str(max(numbers)))
    if kind == 3:
        return Problem("list", f"What is the smallest number in {shown}?", str(min(numbers)))
    if kind == 4:
        words = rng.sample(SHORT_WORDS, rng.randint(2, 6))
        return Problem("list", f"How many words are in this list: {_joined(words)}?", str(len(words)))
    if kind == 5:
        words = rng.sample(SHORT_WORDS, rng.randint(3, 5))
        which, index = rng.choice((("first", 0), ("second", 1), ("last", -1)))
        return Problem("list", f"What is the {which} word of this list: {_joined(words)}?", words[index])
    if kind == 6:
        start = rng.randint(1, 30)
        stop = start + rng.randint(4, 10)
        return Problem("list", f"Count from {start} to {stop}.", _joined(range(start, stop + 1)))
    if kind == 7:
        base, count = rng.randint(2, 9), rng.randint(4, 9)
        return Problem(
            "list", f"Write the first {count} multiples of {base}.", _joined(base * n for n in range(1, count + 1))
        )
    if kind == 8:
        words = rng.sample(SHORT_WORDS, rng.randint(3, 5))
        numbered = "\n".join(f"{number}. {word}" for number, word in enumerate(words, 1))
        return Problem("list", f"Number this list: {_joined(words)}.", numbered)
    start = rng.randint(12, 30)
    stop = start - rng.randint(4, 9)
    return Problem("list", f"Count down from {start} to {stop}.", _joined(range(start, stop - 1, -1)))


def json_record(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """One or two sentences as a JSON record, or as a list of two records."""
    ask = rng.choice(("Write as JSON: ", "Turn this into JSON: ", "Make a JSON record: "))
    if rng.random() < 0.25:
        kind = rng.randrange(3)
        parts = [_sentence(rng, name, kind) for name in rng.sample(names, 2)]
        sentences = " ".join(sentence for sentence, _ in parts)
        return Problem("json", ask + sentences, json.dumps([record for _, record in parts]))
    name = rng.choice(names)
    kinds = rng.sample(range(3), rng.randint(1, 2))
    parts = [_sentence(rng, name if index == 0 else "", kind) for index, kind in enumerate(kinds)]
    merged = {key: value for _, record in parts for key, value in record.items()}
    sentences = " ".join(sentence if index == 0 else f"{name} {sentence}" for index, (sentence, _) in enumerate(parts))
    return Problem("json", ask + sentences, json.dumps(merged))


def _sentence(rng: random.Random, name: str, kind: int) -> tuple[str, dict[str, object]]:
    """A sentence about a person and its record; both without the name if that is empty."""
    subject = f"{name} " if name else ""
    record: dict[str, object] = {"name": name} if name else {}
    if kind == 0:
        age, city = rng.randint(10, 99), rng.choice(CITIES)
        return f"{subject}is {age} years old and lives in {city}.", record | {"age": age, "city": city}
    if kind == 1:
        job, years = rng.choice(JOBS), rng.randint(2, 30)
        return f"{subject}has worked as a {job} for {years} years.", record | {"job": job, "years": years}
    color, animal = rng.choice(COLORS), rng.choice(ANIMALS)
    return f"{subject}has a {color} {animal}.", record | {"color": color, "animal": animal}


_FACTS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "city": ("{} lives in {}.", CITIES, "Where does {} live?"),
    "job": ("{} works as a {}.", JOBS, "What is the job of {}?"),
    "color": ("{} likes the color {}.", COLORS, "Which color does {} like?"),
}


def question(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A question about one person of a passage about one to three; sometimes all that is said of that person."""
    people = rng.sample(names, rng.choice((1, 2, 2, 3, 3)))
    num_kinds = rng.choice((2, 3)) if len(people) == 1 else rng.choice((1, 1, 2))
    kinds = rng.sample(tuple(_FACTS), num_kinds)
    said: dict[str, list[str]] = {person: [] for person in people}
    for kind in kinds:
        say, values, _ = _FACTS[kind]
        for person, value in zip(people, rng.sample(values, len(people)), strict=True):
            said[person].append(say.format(person, value))
    passage = " ".join(sentence for sentences in said.values() for sentence in sentences)
    chosen = rng.choice(people)
    if len(people) > 1 and num_kinds == 2 and rng.random() < 0.5:
        ask = rng.choice(("What do you know about {}?", "Tell me about {}."))
        return Problem("qa", f"{passage} {ask.format(chosen)}", " ".join(said[chosen]))
    asked = rng.randrange(num_kinds)
    return Problem("qa", f"{passage} {_FACTS[kinds[asked]][2].format(chosen)}", said[chosen][asked])


_LINKS: Final = (" ", " ", " = ", ": ", " is ", " has ", " owns a ", " likes the ", " lives in ", " works as a ")


def recall(rng: random.Random, names: tuple[str, ...], most_people: int = 4, any_word_share: float = 0.5) -> Problem:
    """A drill of looking up: pairs of name and word, asked in another order. Only trained, never evaluated.

    What stands between the two is of every length, from nothing on: a pair side by side is found by what copying
    takes, the next token of an earlier one, and the rest can be learned from there.
    """
    people = rng.sample(names, rng.randint(2, most_people))
    if rng.random() < any_word_share:
        values = [_any_word(rng) for _ in people]
    else:
        values = rng.sample(_FACTS[rng.choice(tuple(_FACTS))][1], len(people))
    link = rng.choice(_LINKS)
    order = rng.sample(range(len(people)), len(people))
    shown = " ".join(f"{person}{link}{value}." for person, value in zip(people, values, strict=True))
    answer, found = "", []
    for index in order:
        answer += f"{' ' if answer else ''}{people[index]}{link}"
        found.append((len(answer), len(answer) + len(values[index])))
        answer += f"{values[index]}."
    asked = ", ".join(people[index] for index in order)
    return Problem("recall", f"{shown} Tell me about {asked}.", answer, found=tuple(found))


def short_recall(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """What the stage `drill` trains: two or three people, mostly words of one kind."""
    return recall(rng, names, most_people=3, any_word_share=0.15)


def copy(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A drill of copying: words, most of them made up, to be repeated. Only trained, never evaluated.

    A made-up word can only be told by finding its pieces in the prompt: what looking a person up needs too, and
    every token of the answer asks for it.
    """
    words = [_any_word(rng) for _ in range(rng.randint(3, 10))]
    return Problem("copy", f"Repeat: {' '.join(words)}", " ".join(words))


def _any_word(rng: random.Random) -> str:
    if rng.random() < 0.6:
        word = invented_name(rng)
        return word if rng.random() < 0.5 else word.lower()
    return rng.choice(rng.choice((NAMES, CITIES, JOBS, ANIMALS, COLORS, SHORT_WORDS)))


def _joined(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
