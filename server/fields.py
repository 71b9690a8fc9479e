"""Types of request fields: strict, but forgiving where clients differ without meaning to.

null is the default of every optional field. An integer is a number, and 2.0 is an integer; a boolean is neither,
and a string is never converted.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, model_validator


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_integral), Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Bool = StrictBool
Text = StrictStr
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class Fields(BaseModel):
    """A JSON object of a request: unknown keys are tolerated, null means absent."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key: entry for key, entry in value.items() if entry is not None}
