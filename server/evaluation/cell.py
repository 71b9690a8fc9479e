"""One decoder of a grid: a name and the settings that a request sends for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from psd_core.config import DecoderConfig
from psd_core.errors import ConfigError

Settings = Mapping[str, object]

# What a grid leaves to the flags, the model or the server unless a cell says it.
PLACE_SETTINGS: Final = frozenset({"block_length", "cache", "canvas_blocks", "edit_threshold", "max_edit_passes"})
DRAFT_SETTINGS: Final = frozenset({"draft_depth", "draft_increment", "acceptance"})
NAMES: Final = tuple(field.name for field in fields(DecoderConfig))


@dataclass(frozen=True, slots=True)
class Cell:
    """A decoder to measure.

    name      unique within a grid
    series    cells of one series are points of one line in plots
    settings  of the `psd` object of a request: complete, so that no server's defaults play a part, but for
              PLACE_SETTINGS
    """

    name: str
    series: str
    settings: Settings

    @property
    def decoder(self) -> DecoderConfig:
        """The settings as the engine takes them; PLACE_SETTINGS that are not given have their defaults."""
        return _decoder(self.settings)

    @property
    def is_drafted(self) -> bool:
        """Whether states beyond the policy's own are drafted."""
        return self.decoder.draft_depth != 0 and self.decoder.policy != "lopa"

    @property
    def undrafted(self) -> Settings:
        """What must be equal in two cells for one to be the other without drafts."""
        return {name: value for name, value in self.settings.items() if name not in DRAFT_SETTINGS}


def make_cell(given: Settings, name: str | None = None, series: str | None = None) -> Cell:
    """A cell from whatever settings are given. ConfigError names the setting, its limit and the value."""
    for key in given:
        if key not in NAMES:
            raise ConfigError(key, f"{key} is not a decoder setting; they are {', '.join(NAMES)}")
    try:
        decoder = _decoder(given)
    except TypeError as error:
        raise ConfigError("decoder", str(error)) from None
    if decoder.policy == "lopa" and "draft_depth" not in given:
        given = {**given, "draft_depth": 0}  # which plays no part there; one word in tables less
        decoder = _decoder(given)
    settings = {
        key: getattr(decoder, key)
        for key in NAMES
        if (key in given or key not in PLACE_SETTINGS) and getattr(decoder, key) is not None
    }
    return Cell(name or _name(decoder), series or _series(decoder), settings)


def _decoder(settings: Settings) -> DecoderConfig:
    return DecoderConfig(**settings)  # type: ignore[arg-type]  # it checks what it is given itself


def _name(decoder: DecoderConfig) -> str:
    if decoder.policy == "lopa":
        return f"LoPA, k = {decoder.branches}"
    if not decoder.draft_depth:
        return _policy(decoder)
    return f"PSD({_policy(decoder)}), {_rule(decoder)}, D = {decoder.draft_depth}"


def _series(decoder: DecoderConfig) -> str:
    if decoder.policy == "lopa":
        return "LoPA"
    if not decoder.draft_depth:
        return str(decoder.policy)
    return f"PSD({_policy(decoder)}), {_rule(decoder)}"


def _policy(decoder: DecoderConfig) -> str:
    number = {
        "topk": decoder.k,
        "threshold": decoder.threshold,
        "factor": decoder.factor,
        "entropy": decoder.gamma,
        "margin": decoder.threshold,
        "localleap": decoder.threshold,
    }.get(decoder.policy)
    return str(decoder.policy) if number is None else f"{decoder.policy} {number:g}"


def _rule(decoder: DecoderConfig) -> str:
    increment = "" if decoder.draft_increment == 1 else f", +{decoder.draft_increment}"
    return f"{decoder.acceptance}{increment}"
