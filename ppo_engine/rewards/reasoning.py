"""Scorers of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760), an optional extra: `reasoning`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module
from typing import Any

from ppo_engine.config import ReasoningGymRule
from ppo_engine.rewards.answer_rules import answer_of
from ppo_engine.rewards.exchange import CannotScore, Exchange, ExchangeScore

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EVALUATES = {"eval", "exec", "parse_expr", "sympify", "__import__"}


def reasoning_gym(params: ReasoningGymRule) -> ExchangeScore:
    """The task's own score of what stands in the last <answer>…</answer>, or without one of the whole response.

    Raises:
        ValueError: the extra is not installed, there is no such task, or its scorer runs text as code.
    """
    task = _task(params.task)

    def score(exchange: Exchange) -> float:
        entry = answer_of(exchange, params.entry_field)
        if not isinstance(entry, dict) or "answer" not in entry:
            raise CannotScore(f"field `{params.entry_field}` is not an entry of reasoning-gym: it has no `answer`")
        return float(task.score_answer(final_answer(exchange.response), entry))

    return score


def final_answer(response: str) -> str:
    """What the response gives as its answer."""
    marked = _ANSWER.findall(response)
    return str(marked[-1] if marked else response).strip()


def _task(name: str) -> Any:
    try:
        # Not an ordinary import: the package is an extra, and brings a dozen others along.
        factory = import_module("reasoning_gym.factory")
        import_module("reasoning_gym")
    except ImportError as error:
        raise ValueError(
            "reasoning-gym is not installed on this worker: pip install 'ppo-service[reasoning]'"
        ) from error
    if name not in factory.DATASETS:
        raise ValueError(f"reasoning-gym has no task `{name}`; there are {', '.join(sorted(factory.DATASETS))}")
    dataset, config = factory.DATASETS[name]
    refuse_evaluation(dataset, name)
    try:
        return dataset(config=config())
    except Exception as error:  # some tasks have no defaults
        raise ValueError(f"task `{name}` cannot be set up: {type(error).__name__}: {error}") from error


def refuse_evaluation(dataset: type, name: str) -> None:
    """Refuse a task of whose scorer it is not plain that it runs no text as code.

    Some scorers give the response to `eval`, or to sympy, whose parser does the same: a model could learn to run
    programs on the worker.

    Raises:
        ValueError: the modules of its class call one of those, or cannot be read.
    """
    for module in {cls.__module__ for cls in dataset.__mro__ if cls is not object}:
        if module.split(".")[0] in ("abc", "collections", "typing"):
            continue
        try:
            tree = ast.parse(inspect.getsource(sys.modules[module]))
        except (KeyError, OSError, TypeError) as error:
            raise ValueError(f"the source of task `{name}` cannot be read") from error
        if _evaluates(tree):
            raise ValueError(f"task `{name}` is not possible: its scorer may run a response as code")


def _evaluates(tree: ast.AST) -> bool:
    return any(_is_call(node) or _is_import(node) for node in ast.walk(tree))


def _is_call(node: ast.AST) -> bool:
    """Of a name such as `eval`, with or without a module before it."""
    if not isinstance(node, ast.Call):
        return False
    return (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) in _EVALUATES


def _is_import(node: ast.AST) -> bool:
    """Of sympy, of which many functions parse a string they are given."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] == "sympy" for name in names)
