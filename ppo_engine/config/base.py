"""What every part of a configuration is made of: frozen values, and unions written as exactly one of their fields."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Config(BaseModel):
    """A frozen value with no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OneOf(Config):
    """A union written as exactly one of its fields."""

    alternatives: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in self.alternatives if getattr(self, name) is not None]
        if len(given) != 1:
            wanted = " or ".join(f"`{name}`" for name in self.alternatives)
            raise ValueError(f"give exactly one of {wanted}; {len(given)} given")
        return self
