"""The prompts of a run: read once, checked line by line, and drawn without end in a resumable order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ppo_engine.config import ChatConfig, PromptFile, PromptFolder, PromptsConfig
from ppo_engine.config.data import MAX_FILE_BYTES
from ppo_engine.data.cursor import Cursor
from ppo_engine.datasets.faults import FolderUnusable
from ppo_engine.datasets.folder import read_folder
from ppo_engine.datasets.layout import data_files
from ppo_engine.datasets.lines import Line, checked, line_of, reason
from ppo_engine.errors import InvalidConfig, PromptsUnusable
from ppo_engine.sources import SourceError, open_file, resolve


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt ready to be answered: its place in the set, its text, what the policy sees of it, its JSON line."""

    index: int
    text: str
    ids: tuple[int, ...]
    record: Mapping[str, Any]
    messages: tuple[Mapping[str, str], ...] = ()
    """The conversation, where the line has one."""


def load_prompts(config: PromptsConfig, roots: Sequence[Path]) -> list[Line]:
    """Return the prompts of a spec; files and folders resolve under `roots`.

    Raises:
        PromptsUnusable: the file is missing, too large, not UTF-8 or has no prompt, or one of its lines is wrong.
    """
    if config.folder is not None:
        return _in_folder(config.folder, roots, chat=config.chat is not None)
    if config.dataset is not None:
        raise PromptsUnusable(f"{config.dataset.id} is a dataset of the service; here name a `file`")
    if config.file is None:
        return [Line(text) for text in config.inline or []]
    path = _locate(config.file, roots)
    lines = list(_lines(path, config.file, chat=config.chat is not None))
    if not lines:
        raise PromptsUnusable(f"`{config.file.path}` has no prompt")
    return lines


def _in_folder(folder: PromptFolder, roots: Sequence[Path], *, chat: bool) -> list[Line]:
    try:
        return list(read_folder(folder, data_files(folder, roots), chat=chat))
    except FolderUnusable as error:
        raise PromptsUnusable(str(error)) from error


def _locate(file: PromptFile, roots: Sequence[Path]) -> Path:
    try:
        path = resolve(file.path, roots)
    except SourceError as error:
        raise PromptsUnusable(str(error)) from error
    if path.suffix not in {".jsonl", ".txt"}:
        raise PromptsUnusable(f"`{file.path}` is neither .jsonl nor .txt")
    return path


def _opened(path: Path, file: PromptFile) -> BinaryIO:
    """The file, open; what is checked is what was opened."""
    try:
        opened = open_file(path)
    except SourceError as error:
        raise PromptsUnusable(f"`{file.path}` is not a file") from error
    if os.fstat(opened.fileno()).st_size > MAX_FILE_BYTES:
        opened.close()
        raise PromptsUnusable(f"`{file.path}` is larger than {MAX_FILE_BYTES} bytes")
    return opened


def _lines(path: Path, file: PromptFile, *, chat: bool) -> Iterator[Line]:
    """The prompt of every line that is not blank."""
    with _opened(path, file) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text.strip():
                    yield _json_line(text, file.field, chat=chat) if path.suffix == ".jsonl" else Line(checked(text))
            except ValueError as error:
                raise PromptsUnusable(f"`{file.path}` line {number}: {_reason(error)}") from error


def _json_line(line: str, field: str, *, chat: bool) -> Line:
    try:
        record: Any = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return line_of(record, field, chat=chat)


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return reason(error)


class PromptSource:
    """Draws prompts pass after pass over the set, each pass in a new order if `shuffle`.

    Raises:
        PromptsUnusable: no prompt has between 1 and `max_tokens` tokens.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        tokenizer: Any,
        *,
        max_tokens: int | None,
        shuffle: bool,
        seed: int,
        chat: ChatConfig | None = None,
    ) -> None:
        self._prompts = _tokenize(lines, tokenizer, max_tokens, chat)
        self.left_out = len(lines) - len(self._prompts)
        """Prompts that are longer than `max_tokens`, or have no token at all."""
        if not self._prompts:
            raise PromptsUnusable(f"none of the {len(lines)} prompts has between 1 and {max_tokens} tokens")
        self.fingerprint = _fingerprint(self._prompts, shuffle=shuffle, seed=seed)
        """Digest of the set and of all that its order depends on."""
        self._cursor = Cursor(
            len(self._prompts), shuffle=shuffle, seed=(seed,), fingerprint=self.fingerprint, what="prompt"
        )

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(prompt.ids) for prompt in self._prompts)

    @property
    def all(self) -> list[Prompt]:
        """Every prompt, in the order of the set."""
        return list(self._prompts)

    def draw(self, count: int) -> list[Prompt]:
        """Return the next `count` prompts; every pass gives each prompt once."""
        return [self._prompts[place] for place in self._cursor.draw(count)]

    def state_dict(self) -> dict[str, int | str]:
        """The place in the order, and a digest of all that the order depends on."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointCorrupt: not a state of a prompt source.
            InvalidConfig: taken over other prompts, or another seed.
        """
        self._cursor.load_state_dict(state)


def token_ids(lines: Sequence[Line], tokenizer: Any, chat: ChatConfig | None) -> list[list[int]]:
    """What the policy sees of each prompt.

    Raises:
        InvalidConfig: `chat` without a chat template.
        PromptsUnusable: the template refuses a prompt.
    """
    if chat is not None:
        return _through_template(lines, tokenizer, chat)
    texts = [line.text for line in lines]
    ids: list[list[int]] = tokenizer(texts, return_attention_mask=False, return_token_type_ids=False)["input_ids"]
    return ids


def _tokenize(lines: Sequence[Line], tokenizer: Any, max_tokens: int | None, chat: ChatConfig | None) -> list[Prompt]:
    ids = token_ids(lines, tokenizer, chat)
    prompts = [
        Prompt(i, line.text, tuple(row), line.record, line.messages)
        for i, (line, row) in enumerate(zip(lines, ids, strict=True))
    ]
    return [prompt for prompt in prompts if prompt.ids and (max_tokens is None or len(prompt.ids) <= max_tokens)]


def _through_template(lines: Sequence[Line], tokenizer: Any, chat: ChatConfig) -> list[list[int]]:
    """Token ids of each conversation, up to where the assistant begins to answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidConfig(
            "prompts.chat: the policy's tokenizer has no chat template",
            suggestion="Leave prompts.chat out, or use an instruction-tuned model.",
        )
    system = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    conversations = [[*system, *(line.messages or ({"role": "user", "content": line.text},))] for line in lines]
    try:
        ids: list[list[int]] = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # templates are programs
        raise PromptsUnusable(f"the policy's chat template refuses a prompt: {error}") from error
    return ids


def _fingerprint(prompts: Sequence[Prompt], *, shuffle: bool, seed: int) -> str:
    digest = hashlib.sha256(json.dumps([shuffle, seed]).encode())
    for prompt in prompts:
        digest.update(json.dumps([prompt.index, prompt.text, prompt.ids, prompt.record]).encode())
    return digest.hexdigest()
