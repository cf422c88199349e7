"""A place in an endless, resumable pass after pass over a set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ppo_engine.errors import CheckpointCorrupt, InvalidConfig


class Cursor:
    """Draws the places 0 .. count - 1, each once per pass, every pass in a new order if `shuffle`.

    `seed` says which orders; `fingerprint` is a digest of the set, `what` the name of one of its members in messages.
    """

    def __init__(self, count: int, *, shuffle: bool, seed: tuple[int, ...], fingerprint: str, what: str) -> None:
        self._count, self._shuffle, self._seed = count, shuffle, seed
        self._fingerprint, self._what = fingerprint, what
        self._enter(0, 0)

    def draw(self, count: int) -> list[int]:
        """The next `count` places."""
        drawn = []
        for _ in range(count):
            if self._position == self._count:
                self._enter(self._pass + 1, 0)
            drawn.append(self._order[self._position])
            self._position += 1
        return drawn

    def state_dict(self) -> dict[str, int | str]:
        """Where it stands, and in what."""
        return {"pass": self._pass, "position": self._position, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointCorrupt: not a state of a cursor.
            InvalidConfig: taken over another set, or with another seed.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise InvalidConfig(f"the {self._what}s or the seed are not those that this run began with")
        number, position = state.get("pass"), state.get("position")
        if not isinstance(number, int) or not isinstance(position, int):
            raise CheckpointCorrupt(f"the {self._what} cursor has no place")
        if number < 0 or not 0 <= position <= self._count:
            raise CheckpointCorrupt(f"the {self._what} cursor is out of range: pass {number}, position {position}")
        self._enter(number, position)

    def _enter(self, number: int, position: int) -> None:
        self._pass, self._position = number, position
        if self._shuffle:
            self._order: list[int] = np.random.default_rng((*self._seed, number)).permutation(self._count).tolist()
        else:
            self._order = list(range(self._count))
