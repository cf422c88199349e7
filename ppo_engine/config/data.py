"""The texts of a run: prompts, and the texts of the pretraining loss."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from ppo_engine.config.base import Config, OneOf

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Largest file of prompts or texts."""
MAX_PROMPT_CHARACTERS = 100_000
DATASET_ID = r"^ds_[0-9a-hjkmnp-tv-z]{26}$"


class PromptFile(Config):
    """Prompts in a file under one of the operator's data roots."""

    path: str = Field(
        min_length=1, max_length=4096, description="JSON Lines (`.jsonl`), or one prompt a line (`.txt`)."
    )
    field: str = Field(
        "prompt",
        min_length=1,
        max_length=128,
        description="Name of the prompt's field in a JSON line: a string, or with `chat` a list of messages. Rewards "
        "see the other fields too, for example `answer`.",
    )


class PromptDataset(Config):
    """Prompts in a dataset that was uploaded to the service (`POST /v1/datasets`)."""

    id: str = Field(pattern=DATASET_ID, description="Id of the dataset, `ds_...`.")
    field: str = Field(
        "prompt",
        min_length=1,
        max_length=128,
        description="The column with the prompt: text, or with `chat` a list of messages. Rewards see the other "
        "columns too.",
    )


class PromptFolder(Config):
    """Prompts in a folder under one of the operator's roots: files, or a dataset of the Hugging Face hub on disk.

    The words are those of the `datasets` library. Nothing is downloaded, and no code of a dataset is run.
    """

    path: str = Field(
        min_length=1,
        max_length=4096,
        description="The folder: of files (JSON Lines, CSV, Parquet, text with a prompt a line), a clone or download "
        "of a hub dataset, or its folder `datasets--owner--name` in the hub's cache.",
    )
    config: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Which of the configs that the dataset's README.md declares. Default: its default one.",
    )
    split: str = Field(
        "train",
        min_length=1,
        max_length=256,
        description="Which split; files that say nothing of splits are `train`.",
    )
    revision: str | None = Field(
        None,
        pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$",
        max_length=256,
        description="Of a folder in the hub's cache: branch, tag or commit. Default: main, or the only one.",
    )
    field: str = Field(
        "prompt",
        min_length=1,
        max_length=128,
        description="The column with the prompt: text, or with `chat` a list of messages. Rewards see the other "
        "columns too. Text files have no columns.",
    )
    max_rows: int | None = Field(
        None, ge=1, le=10_000_000, description="Take the first so many rows; the others are not read. Default: all."
    )


class ChatConfig(Config):
    """Prompts are what a user says; the model's own chat template makes the text of them."""

    system: str | None = Field(None, max_length=100_000, description="System message before each prompt.")


class PromptsConfig(OneOf):
    """The prompts a run draws from."""

    alternatives = ("inline", "file", "dataset", "folder")

    inline: list[Annotated[str, StringConstraints(min_length=1, max_length=100_000)]] | None = Field(
        None, min_length=1, max_length=10_000, description="Prompts written in the spec."
    )
    file: PromptFile | None = Field(None, description="Prompts in a file.")
    dataset: PromptDataset | None = Field(None, description="Prompts in an uploaded dataset.")
    folder: PromptFolder | None = Field(None, description="Prompts in a folder of files, or a hub dataset on disk.")
    chat: ChatConfig | None = Field(None, description="Put prompts through the policy's chat template.")
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="Longest prompt in tokens; longer ones are left out, and counted."
    )
    shuffle: bool = Field(True, description="New order every pass; off: in file order.")


class PTXConfig(Config):
    """A language-model loss on ordinary text beside PPO (PPO-ptx: Ouyang et al. 2022, arXiv:2203.02155, eq. 2)."""

    texts: PromptsConfig = Field(
        description="The texts; `max_tokens` (here 512 by default) cuts them, a text not cut ends with the end-of-text "
        "token, and `chat` is not possible."
    )
    coef: float = Field(1.0, gt=0.0, le=1e3, description="Weight of the loss.")
    batch_size: int = Field(8, ge=1, le=100_000, description="Texts per optimizer step.")
