"""Classes that clients ask for with openai's `parse`: some of the types in tests/gateway/parse_table.py."""

import enum
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal, NamedTuple, NotRequired, Optional

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, WithJsonSchema
from typing_extensions import TypedDict


class Colour(enum.Enum):
    """An enumeration."""

    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    """Whole numbers."""

    SMALL = 1
    LARGE = 2


class Sign(enum.StrEnum):
    """Texts that JSON spells with escapes."""

    QUOTE = 'a"\\'
    BREAK = "\n"


class Part(BaseModel):
    """In other models."""

    amount: Annotated[int, Field(ge=0, description="how many", examples=[1])]
    name: Annotated[str, Field(pattern="^[a-z]+$", max_length=9)]


class Tree(BaseModel):
    """Leads to itself in a list."""

    value: bool
    children: list["Tree"] = []


class Link(BaseModel):
    """Leads to itself, or to nothing."""

    value: bool
    following: Optional["Link"] = None


class Cat(BaseModel):
    """One of two that `kind` tells apart."""

    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    """The other one."""

    kind: Literal["dog"]
    name: str


class Closed(BaseModel):
    """Allows no other names."""

    model_config = ConfigDict(extra="forbid", strict=True)
    first: date = Field(alias="the first")


class Open(BaseModel):
    """Allows any other names."""

    model_config = ConfigDict(extra="allow")
    first: int = 3
    second: Part = Part(amount=1, name="a")
    third: list[int] = Field(default_factory=list)
    fourth: str | None = None


class Whole(RootModel[Annotated[list[bool], Field(max_length=2)]]):
    """A list as a model."""


class Record(TypedDict):
    """A dictionary with names."""

    first: int
    second: NotRequired[str]


class Pair(NamedTuple):
    """A tuple with names."""

    first: int
    second: str = "x"


@dataclass
class Data:
    """A dataclass of Python's own."""

    first: int
    second: str = "x"


def dotted(address: str) -> str:
    if "." not in address.rpartition("@")[2]:
        raise ValueError("email-validator demands a dot in the host")
    return address


# EmailStr, whose package is none of Baton's
Email = Annotated[str, AfterValidator(dotted), WithJsonSchema({"type": "string", "format": "email"})]
