"""How much room a model has, and how full the next request will be."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Window:
    """A model's limits in tokens.

    context: prompt and output together; output: most that one answer may have; input: a limit of the prompt alone,
    where the model has one. Raises ConfigError for limits that leave no room.
    """

    context: int
    output: int = 8192
    input: int | None = None

    def __post_init__(self) -> None:
        if self.usable < 1:
            raise ConfigError(
                f"a window of {self.context:,} tokens leaves no room beside an answer of {self.output:,}: reserve less"
            )

    @property
    def usable(self) -> int:
        """What a prompt may have, so that the longest answer still fits."""
        room = self.context - self.output
        return room if self.input is None else min(room, self.input)
