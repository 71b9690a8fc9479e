"""Free text: notes and stories, written from templates with choices, and graded by the same templates.

A template holds choices in braces, `{a|b|c}`. Writing picks one of each at random, so that several texts are right and
a model cannot be sure of the next word; grading accepts whatever the templates allow.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final

from demo_model.problem import Problem
from demo_model.words import ANIMALS, COLORS, DAYS, TOPICS

_INVITATIONS: Final = (
    "{Please come|I hope you can come|You should come} to the TOPIC on DAY{.|!| evening.}",
    "{We meet|We will meet|You can find us} at the TOPIC on DAY{.|!| evening.}",
    "{Let us|I want to|We should} go to the TOPIC on DAY{.|!| evening.}",
)
_BODIES: Final[Mapping[str, str]] = {
    "garden": "The {roses|tulips|trees} are {green|open|tall} and the {grass|path|pond} is {dry|clean|warm}.",
    "party": "There will be {music|cake|dancing} and {a big|a long|a happy} {table|evening|surprise}.",
    "school": "The {teacher|class|room} is {kind|bright|quiet} and we {learn|read|draw} {a lot|every day|with joy}.",
    "concert": "The {band|choir|singer} {plays|knows|loves} our favorite {songs|pieces|tunes}.",
    "trip": "We take the {train|bus|boat} and walk to the {hill|forest|castle}.",
    "dinner": "I will {cook|bring|make} {soup|fish|rice} and bake {fresh|warm|sweet} {bread|cake|pie}.",
    "meeting": "We will {talk|decide|think} about the {plan|house|money} for next {year|week|month}.",
    "library": "They have {new|old|many} {books|maps|papers} and {quiet|warm|large} rooms.",
    "market": "They sell {fruit|cheese|honey} and {warm|dark|fresh} bread.",
    "game": "Our team {trained|worked|played} hard and {hopes|wants|needs} to win.",
    "museum": "They show {old|famous|small} {ships|pictures|coins} from {Asia|Africa|our town}.",
    "lake": "The water is {warm|clear|calm} and the {boats|ducks|trees} are {ready|lovely|near}.",
}
_REQUESTS: Final = (
    "Please bring {a warm|a light|an old} {coat|hat|bag}.",
    "{Please|Remember to|Do not forget to} bring {some|your|the} {water|tea|juice}.",
    "{My brother|My sister|Our friend} will {come|help|be there} too.",
    "It {starts|begins|ends} at {two|four|six} o'clock.",
    "The {weather|day|place} will be {sunny|fine|lovely}.",
)
_STORIES: Final = (
    "{One day|One morning|One evening} NAME {saw|found|met} a {small|big|young|tired} COLOR ANIMAL in the "
    "{garden|forest|street}.",
    "The ANIMAL was {hungry|cold|sad|lost} and {looked at|ran to|waited for} NAME.",
    "NAME {gave|brought|showed} the ANIMAL {some|a bowl of|a little} {milk|bread|water}.",
    "{Then they|Together they|Soon they} {played|walked|danced} {by the river|in the sun|under a tree}.",
    "{In the end|At night|After that} the ANIMAL {slept|stayed|lived} {in the house|near the door|with NAME}.",
    "{They were|Both were|NAME was} very {happy|glad|proud}.",
)
_NOTE_PROMPT: Final = "Write a note from {} to {} about the {} on {}."
_STORY_PROMPT: Final = "Write a story about {} and a {} {}."
_CHOICE: Final = re.compile(r"\{([^}]*)\}")


def prose(rng: random.Random, names: tuple[str, ...]) -> Problem:
    """A note or a story of several sentences."""
    if rng.random() < 0.5:
        writer, reader = rng.sample(names, 2)
        topic, day = rng.choice(TOPICS), rng.choice(DAYS)
        prompt = _NOTE_PROMPT.format(writer, reader, topic, day)
        requests = rng.sample(_REQUESTS, rng.randint(1, 2))
        text = " ".join(_write(t, rng) for t in (rng.choice(_INVITATIONS), _BODIES[topic], *requests))
        text = _fill(text, TOPIC=topic, DAY=day)
        return Problem("prose", prompt, f"Dear {reader},\n{text}\nYours, {writer}")
    name, color, animal = rng.choice(names), rng.choice(COLORS), rng.choice(ANIMALS)
    text = " ".join(_write(template, rng) for template in _STORIES)
    return Problem(
        "prose", _STORY_PROMPT.format(name, color, animal), _fill(text, NAME=name, COLOR=color, ANIMAL=animal)
    )


def is_right(prompt: str, text: str) -> bool:
    """Whether `text` is a note or story that the templates allow for `prompt`."""
    if found := re.fullmatch(re.escape(_NOTE_PROMPT).replace(r"\{\}", "(.*?)"), prompt):
        writer, reader, topic, day = found.groups()
        requests = f"(?: (?:{'|'.join(map(_pattern, _REQUESTS))})){{1,2}}"
        body = f"(?:{'|'.join(map(_pattern, _INVITATIONS))}) {_pattern(_BODIES[topic])}{requests}"
        pattern = _fill(body, TOPIC=topic, DAY=day)
        parts = re.fullmatch(rf"Dear {re.escape(reader)},\n(.*)\nYours, {re.escape(writer)}", text)
        return parts is not None and re.fullmatch(pattern, parts[1]) is not None
    found = re.fullmatch(re.escape(_STORY_PROMPT).replace(r"\{\}", "(.*?)"), prompt)
    if not found:
        raise ValueError(f"prompt must ask for a note or a story; got {prompt!r}")
    name, color, animal = map(re.escape, found.groups())
    pattern = _fill(" ".join(map(_pattern, _STORIES)), NAME=name, COLOR=color, ANIMAL=animal)
    return re.fullmatch(pattern, text) is not None


def _write(template: str, rng: random.Random) -> str:
    return _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)


def _pattern(template: str) -> str:
    """A regular expression for all texts of a template."""
    pieces = _CHOICE.split(template)  # fixed text and choices in turn
    return "".join(
        f"(?:{'|'.join(map(re.escape, piece.split('|')))})" if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )


def _fill(text: str, **values: str) -> str:
    for key, value in values.items():
        text = text.replace(key, value)
    return text
