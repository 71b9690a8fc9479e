"""Text tasks: lists, JSON records, questions about a passage, short notes."""

from __future__ import annotations

import json
import random

from demo_model.problem import Problem
from demo_model.words import ANIMALS, CITIES, COLORS, DAYS, JOBS, SHORT_WORDS, TOPICS


def list_task(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """Sort, reverse, find an extreme, count or filter a short list."""
    kind = rng.randrange(6)
    numbers = rng.sample(range(1, 10), rng.randint(3, 5))
    shown = ", ".join(map(str, numbers))
    if kind == 0:
        return Problem("list", f"Sort these numbers: {shown}.", ", ".join(map(str, sorted(numbers))))
    if kind == 1:
        words = rng.sample(SHORT_WORDS, rng.randint(3, 4))
        return Problem("list", f"Reverse this list: {', '.join(words)}.", ", ".join(reversed(words)))
    if kind == 2:
        return Problem("list", f"What is the largest number in {shown}?", str(max(numbers)))
    if kind == 3:
        return Problem("list", f"What is the smallest number in {shown}?", str(min(numbers)))
    if kind == 4:
        words = rng.sample(SHORT_WORDS, rng.randint(2, 6))
        return Problem("list", f"How many words are in this list: {', '.join(words)}?", str(len(words)))
    words = rng.sample(SHORT_WORDS, rng.randint(3, 5))
    which, index = rng.choice((("first", 0), ("second", 1), ("last", -1)))
    return Problem("list", f"What is the {which} word of this list: {', '.join(words)}?", words[index])


def json_record(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A sentence as a JSON record."""
    name, age, city, job = rng.choice(names), rng.randint(10, 99), rng.choice(CITIES), rng.choice(JOBS)
    animal, color = rng.choice(ANIMALS), rng.choice(COLORS)
    kind = rng.randrange(3)
    sentence: str
    record: dict[str, object]
    if kind == 0:
        sentence = f"{name} is {age} years old and lives in {city}."
        record = {"name": name, "age": age, "city": city}
    elif kind == 1:
        sentence = f"{name} works as a {job} in {city}."
        record = {"name": name, "job": job, "city": city}
    else:
        sentence = f"{name} has a {color} {animal}."
        record = {"name": name, "color": color, "animal": animal}
    ask = rng.choice(("Write as JSON: ", "Turn this into JSON: ", "Make a JSON record: "))
    return Problem("json", ask + sentence, json.dumps(record))


def question(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A question about a passage of three sentences."""
    people = rng.sample(names, 3)
    kind = rng.randrange(3)
    if kind == 0:
        values, say, ask = rng.sample(CITIES, 3), "{} lives in {}.", "Where does {} live?"
    elif kind == 1:
        values, say, ask = rng.sample(JOBS, 3), "{} works as a {}.", "What is the job of {}?"
    else:
        values, say, ask = rng.sample(COLORS, 3), "{} likes the color {}.", "Which color does {} like?"
    chosen = rng.randrange(3)
    passage = " ".join(say.format(person, value) for person, value in zip(people, values, strict=True))
    sentence = say.format(people[chosen], values[chosen])
    return Problem("qa", f"{passage} {ask.format(people[chosen])}", sentence)


_BODIES = {
    "garden": "The flowers are open and the trees are green.",
    "party": "There will be music and a big cake.",
    "school": "The new teacher is kind and the room is bright.",
    "concert": "The band plays our favorite songs.",
    "trip": "We take the early train and walk to the lake.",
    "dinner": "I will cook soup and bake fresh bread.",
    "meeting": "We will talk about the plan for next year.",
    "library": "They have many new books and quiet rooms.",
    "market": "They sell fruit, cheese and warm bread.",
    "game": "Our team trained hard and hopes to win.",
    "museum": "They show old ships and maps.",
    "lake": "The water is warm and the boats are ready.",
}


def note(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A short note of a fixed form about a topic."""
    reader, writer = rng.sample(names, 2)
    topic, day = rng.choice(TOPICS), rng.choice(DAYS)
    prompt = f"Write a note from {writer} to {reader} about the {topic} on {day}."
    answer = f"Dear {reader}, please come to the {topic} on {day}. {_BODIES[topic]} Yours, {writer}"
    return Problem("prose", prompt, answer)
