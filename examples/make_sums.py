"""Write sums as prompts for the arithmetic example: JSON lines with `prompt` and `answer`.

A tenth of the sums is kept out of training, to measure with: OUT gets `sums.jsonl` and `sums-held-out.jsonl`. A solved
sum stands before each, because a model of text continues what it sees.

    python examples/make_sums.py OUT [--largest 20]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

Sum = tuple[int, int]
SOLVED: Sum = (12, 6)
HELD_OUT_SHARE = 0.1


def sums(largest: int) -> tuple[list[Sum], list[Sum]]:
    """All sums of two numbers from 1 to `largest` but the solved one, in random order: to train, and held out.

    Both orders of two numbers are on the same side, so that no held-out sum was seen the other way round.
    """
    pairs = [(a, b) for a in range(1, largest + 1) for b in range(a, largest + 1) if (b, a) != SOLVED]
    random.Random(0).shuffle(pairs)
    held_out = round(HELD_OUT_SHARE * len(pairs))
    return _both_orders(pairs[held_out:]), _both_orders(pairs[:held_out])


def _both_orders(pairs: Iterable[Sum]) -> list[Sum]:
    return [order for a, b in pairs for order in dict.fromkeys([(a, b), (b, a)])]


def line(a: int, b: int) -> str:
    """One JSON line; the model is to go on after the equals sign."""
    first, second = SOLVED
    return json.dumps({"prompt": f"{first} + {second} = {first + second}\n{a} + {b} =", "answer": a + b})


def write(path: Path, chosen: Iterable[Sum]) -> None:
    """One line for each sum."""
    path.write_text("".join(line(a, b) + "\n" for a, b in chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the two files")
    parser.add_argument("--largest", type=int, default=20, help="largest number in a sum")
    arguments = parser.parse_args()
    train, held_out = sums(arguments.largest)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "sums.jsonl", train)
    write(arguments.out / "sums-held-out.jsonl", held_out)
    print(f"{len(train)} sums to train on and {len(held_out)} held out in {arguments.out}")


if __name__ == "__main__":
    main()
