"""Rules about source code. Each takes one file and yields what breaks it, as `line: sentence`."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from tests.support.source_tree import FACE, Source

Rule = Callable[[Source], Iterator[str]]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"})
TORCH_MODULES = frozenset({"torch", "transformers", "accelerate", "numpy", "safetensors", "tensorboard", "gguf"})
UNSAFE_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"})
UNSAFE_CALLS = frozenset({"eval", "exec", "yaml.load", "os.system", "os.popen", "tempfile.mktemp"})
UNSAFE_KEYWORDS = frozenset({"shell", "trust_remote_code"})
STATE_WRITERS = frozenset({"values", "Job", "move", "note", "touch"})
"""What could set the column: an UPDATE, a row's constructor, the functions of jobs/transition.py."""
HOOKS = frozenset({"process_bind_param", "process_result_value", "forward", "backward", "emit", "format"})
"""Methods that a library calls and whose meaning it defines."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def commits(source: Source) -> Iterator[str]:
    """A transaction ends in `jobs/db.py` and nowhere else."""
    if source.path == "jobs/db.py":
        return
    for call in _calls(source.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "commit":
            yield f"{call.lineno}: .commit() belongs to jobs/db.py"


def state_writes(source: Source) -> Iterator[str]:
    """A job's state is written in `jobs/transition.py` and nowhere else."""
    if source.path == "jobs/transition.py":
        return
    for node in ast.walk(source.tree):
        if any(_is_state_of_another(target) for target in _targets(node)) or _writes_state_column(node):
            yield f"{node.lineno}: state is written in jobs/transition.py only"  # type: ignore[attr-defined]


def rows(source: Source) -> Iterator[str]:
    """Rows stay inside the domain: others see views."""
    if source.room in {"jobs", "migrations"}:
        return
    for line, module in imports(source.tree):
        if module == "jobs.tables":
            yield f"{line}: jobs.tables is the domain's own"


def environment(source: Source) -> Iterator[str]:
    """Environment variables are read in `settings.py`."""
    if PurePosixPath(source.path).name == "settings.py":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and _dotted(node) in {"os.environ", "os.getenv", "os.putenv"}:
            yield f"{node.lineno}: {_dotted(node)} belongs to settings.py"
        if isinstance(node, ast.ImportFrom) and node.module == "os" and {"environ", "getenv"} & _imported(node):
            yield f"{node.lineno}: the environment belongs to settings.py"


def size(source: Source) -> Iterator[str]:
    """Files and functions stay short."""
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"1: {lines} lines, more than {MAX_FILE_LINES}"
    code = _code_lines(source.text)
    for function in (node for node in ast.walk(source.tree) if isinstance(node, FUNCTIONS)):
        length = len(code & set(range(function.lineno, (function.end_lineno or 0) + 1)) - _docstring_lines(function))
        if length > MAX_FUNCTION_LINES:
            yield f"{function.lineno}: {function.name} has {length} lines of code, more than {MAX_FUNCTION_LINES}"


def torch(source: Source) -> Iterator[str]:
    """Torch and its kin are imported by the engine, behind its face."""
    path = PurePosixPath(source.path)
    if source.room == "ppo_engine" and not (len(path.parts) == 2 and path.stem in FACE):
        return
    for line, module in imports(source.tree):
        if module.split(".")[0] in TORCH_MODULES:
            yield f"{line}: {module} belongs behind the engine's face"


def vague_names(source: Source) -> Iterator[str]:
    """A file is named after what it holds."""
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if part in VAGUE_NAMES:
            yield f"1: `{part}` says nothing about what is inside"


def unsafe(source: Source) -> Iterator[str]:
    """Nothing runs code out of data."""
    for line, module in imports(source.tree):
        if module.split(".")[0] in UNSAFE_MODULES:
            yield f"{line}: {module} runs code out of data"
    for call in _calls(source.tree):
        name = _dotted(call.func)
        switched_on = {word.arg for word in call.keywords if word.arg and not _is_constant(word.value, False)}
        if name in UNSAFE_CALLS or UNSAFE_KEYWORDS & switched_on:
            yield f"{call.lineno}: {name}: unsafe call"
        if name == "torch.load" and not any(_is_weights_only(word) for word in call.keywords):
            yield f"{call.lineno}: torch.load without weights_only=True"


def docstrings(source: Source) -> Iterator[str]:
    """A public name of the domain and of the engine says what it is. Properties may speak by their name."""
    if ast.get_docstring(source.tree) is None and source.text.strip():
        yield "1: the module has no docstring"
    for node in _public(source.tree.body):
        if ast.get_docstring(node) is None:
            yield f"{node.lineno}: {node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            for method in _public(node.body):
                if method.name not in HOOKS and not _is_plain(method) and ast.get_docstring(method) is None:
                    yield f"{method.lineno}: {node.name}.{method.name} has no docstring"


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every imported module, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _dotted(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _imported(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_weights_only(word: ast.keyword) -> bool:
    return word.arg == "weights_only" and _is_constant(word.value, True)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _is_state_of_another(target: ast.expr) -> bool:
    """`job.state = …` or `values["state"] = …`; an error or view that keeps its own `self.state` is no row."""
    if isinstance(target, ast.Subscript):
        return _dotted(target.value) == "values" and _is_word(target.slice, "state")
    return isinstance(target, ast.Attribute) and target.attr == "state" and _dotted(target.value) != "self"


def _writes_state_column(node: ast.AST) -> bool:
    """`.values(state=…)`, `.values({"state": …})`, `setattr(job, "state", …)`, a row built or touched with `state=`."""
    if not isinstance(node, ast.Call):
        return False
    name = _dotted(node.func).split(".")[-1] or getattr(node.func, "attr", "")
    if name == "setattr":
        return any(_is_word(arg, "state") for arg in node.args)
    if name not in STATE_WRITERS:
        return False
    keys = [key for arg in node.args if isinstance(arg, ast.Dict) for key in arg.keys if key is not None]
    named = any(_is_word(key, "state") or getattr(key, "attr", "") == "state" for key in keys)
    return named or any(word.arg == "state" for word in node.keywords)


def _is_word(node: ast.expr, word: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == word


def _code_lines(text: str) -> set[int]:
    """Lines with code on them: neither blank nor only a comment."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            found.update(range(token.start[0], token.end[0] + 1))
    return found


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    if ast.get_docstring(function) is None:
        return set()
    return set(range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1))


def _public(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return [node for node in body if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_")]


def _is_plain(method: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """A property, an override of a library's hook, or an overload."""
    names = {_dotted(decorator).split(".")[-1] for decorator in method.decorator_list}
    return bool(names & {"property", "cached_property", "override", "overload", "setter"})
