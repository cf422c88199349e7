"""Folders of prompts: which files make which split, what a row must have, and what is refused with its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.config import PromptFolder, PromptsConfig
from ppo_engine.data.prompts import load_prompts
from ppo_engine.datasets import folder as folder_module
from ppo_engine.datasets import layout, parquet_program
from ppo_engine.datasets.faults import FolderUnusable
from ppo_engine.datasets.folder import read_folder
from ppo_engine.datasets.layout import data_files
from ppo_engine.datasets.lines import Line
from ppo_engine.errors import PromptsUnusable
from tests.support.hub_folders import COMMIT, cached, json_lines, parquet, write

Files = Mapping[str, bytes | str]


def lines(root: Path, path: str = "set", *, chat: bool = False, **options: Any) -> list[Line]:
    folder = PromptFolder(path=path, **options)
    return list(read_folder(folder, data_files(folder, [root]), chat=chat))


def texts(root: Path, path: str = "set", **options: Any) -> list[str]:
    return [line.text for line in lines(root, path, **options)]


def refused(root: Path, path: str = "set", **options: Any) -> FolderUnusable:
    with pytest.raises(FolderUnusable) as caught:
        lines(root, path, **options)
    return caught.value


def names(root: Path, split: str, **options: Any) -> list[str]:
    return [file.name for file in data_files(PromptFolder(path="set", split=split, **options), [root])]


# --- which files --------------------------------------------------------------------------------------------------

ROW = json_lines("a")
LAYOUTS: list[tuple[list[str], dict[str, list[str]]]] = [
    (["b.jsonl", "a.jsonl"], {"train": ["a.jsonl", "b.jsonl"]}),
    (
        ["train.jsonl", "test.csv", "dev.csv"],
        {"train": ["train.jsonl"], "test": ["test.csv"], "validation": ["dev.csv"]},
    ),
    (
        ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "data/sft-00000-of-00001.parquet"],
        {
            "train": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
            "sft": ["data/sft-00000-of-00001.parquet"],
        },
    ),
    (["train/x.jsonl", "eval/test.jsonl"], {"train": ["train/x.jsonl"], "test": ["eval/test.jsonl"]}),
    (["my_train_file.csv", "trained.csv"], {"train": ["my_train_file.csv"]}),
    ([".hidden/a.csv", "__pycache__/b.csv", ".c.csv", "d.csv"], {"train": ["d.csv"]}),
    (["LICENSE.txt", "p.tsv"], {"train": ["p.tsv"]}),
    (["dataset_infos.json", "state.json", "README.md", "rows.json"], {"train": ["rows.json"]}),
    (["openings.txt"], {"train": ["openings.txt"]}),
]


@pytest.mark.parametrize(("there", "splits"), LAYOUTS)
def test_the_names_of_files_say_the_splits(tmp_path: Path, there: list[str], splits: dict[str, list[str]]) -> None:
    write(tmp_path / "set", dict.fromkeys(there, ROW))
    for split, wanted in splits.items():
        assert names(tmp_path, split) == wanted
    error = refused(tmp_path, split="nope").faults[0]
    assert (error.part, error.code, error.allowed) == ("split", "unknown_split", tuple(sorted(splits)))


CARD = """---
language: en
dataset_info:
- config_name: main
  features:
  - name: prompt
configs:
- config_name: main
  data_files:
  - split: train
    path: [main/*.jsonl, "extra.jsonl"]
  - split: test
    path: "**/held.jsonl"
- config_name: chosen
  default: true
  data_files: other/*
- config_name: below
  data_dir: ./nested
- config_name: tab
  data_files: x.csv
  sep: "\\t"
- config_name: away
  data_files: ../../etc/*
license: mit
---
configs:
- not these
"""


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    files = ["main/a.jsonl", "main/b.jsonl", "extra.jsonl", "deep/er/held.jsonl", "other/c.jsonl", "nested/train.jsonl"]
    write(tmp_path / "set", {"README.md": CARD, "set.py": "class X(GeneratorBasedBuilder): ...", "x.csv": "prompt\na"})
    write(tmp_path / "set", dict.fromkeys(files, ROW))
    return tmp_path


def test_a_readme_says_the_configs_and_their_files(declared: Path) -> None:
    assert names(declared, "train", config="main") == ["extra.jsonl", "main/a.jsonl", "main/b.jsonl"]
    assert names(declared, "test", config="main") == ["deep/er/held.jsonl"]
    assert names(declared, "train") == ["other/c.jsonl"]
    assert names(declared, "train", config="below") == ["nested/train.jsonl"]


def test_a_config_that_cannot_be_taken_is_refused(declared: Path) -> None:
    unknown = refused(declared, config="mian").faults[0]
    assert (unknown.part, unknown.code) == ("config", "unknown_config")
    assert unknown.allowed == ("main", "chosen", "below", "tab", "away")
    assert "sets `sep`" in str(refused(declared, config="tab"))
    assert "not below its folder" in str(refused(declared, config="away"))
    card = declared / "set" / "README.md"
    card.write_text(CARD.replace("  default: true\n", ""))
    assert refused(declared).faults[0].code == "unknown_config"
    card.write_text("---\nconfigs:\n- {a\n---\n")
    assert "not YAML" in str(refused(declared))
    card.write_text("---\nconfigs: []")
    assert "does not end" in str(refused(declared))
    card.write_text("---\nconfigs:\n- data_files: none.csv\n---\n")
    assert "not there" in str(refused(declared))
    card.write_text("---\nconfigs:\n- data_files:\n" + "  - a\n" * 10_001 + "---\n")
    assert "more than 10000 files" in str(refused(declared))


def test_code_of_a_dataset_is_refused_and_not_run(tmp_path: Path) -> None:
    script = "open('ran', 'w')\nclass Set(datasets.GeneratorBasedBuilder): ..."
    write(tmp_path / "set", {"set.py": script, "train.jsonl": ROW})
    fault = refused(tmp_path).faults[0]
    assert (fault.part, fault.code) == ("path", "dataset_script")
    assert "`set.py`" in fault.detail
    write(tmp_path / "set", {"set.py": "print('counts words')"})
    assert texts(tmp_path) == ["a"]


def test_a_config_needs_a_readme(tmp_path: Path) -> None:
    write(tmp_path / "set", {"train.jsonl": ROW, "README.md": "# A set\n---\nconfigs:\n"})
    assert refused(tmp_path, config="main").faults[0].part == "config"
    assert texts(tmp_path) == ["a"]


# --- the cache of the hub -----------------------------------------------------------------------------------------


def test_a_folder_of_the_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    shards = {f"data/train-{n:05}-of-00002.parquet": parquet(prompt=[f"p{n}"], n=[n]) for n in range(2)}
    folder = cached(tmp_path, {**shards, "README.md": "# Set"})
    assert texts(tmp_path, folder.name) == ["p0", "p1"]
    assert texts(tmp_path, f"{folder.name}/snapshots/{COMMIT}") == ["p0", "p1"]
    assert lines(tmp_path, folder.name)[1].record == {"prompt": "p1", "n": 1}


def test_a_revision_is_a_branch_a_tag_or_a_commit(tmp_path: Path) -> None:
    cached(tmp_path, {"train.jsonl": json_lines("old")}, commit="0" * 40)
    folder = cached(tmp_path, {"train.jsonl": json_lines("new")})
    write(folder, {"refs/v1/rc": "0" * 40})
    for revision, wanted in [(None, "new"), ("main", "new"), ("v1/rc", "old"), ("0" * 40, "old")]:
        assert texts(tmp_path, folder.name, revision=revision) == [wanted]
    assert refused(tmp_path, folder.name, revision="v2").faults[0].code == "unknown_revision"
    write(folder, {"refs/bad": "../../.."})
    assert refused(tmp_path, folder.name, revision="bad").faults[0].code == "unknown_revision"
    write(tmp_path / "set", {"train.jsonl": ROW})
    assert refused(tmp_path, revision="main").faults[0].part == "revision"


def test_no_link_leads_out_of_the_roots(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"secret.jsonl": json_lines("secret"), "refs": COMMIT})
    root = tmp_path / "root"
    folder = cached(root, {"train.jsonl": ROW, "README.md": "x"})
    snapshot = folder / "snapshots" / COMMIT
    (snapshot / "also.jsonl").symlink_to(outside / "secret.jsonl")
    (snapshot / "train.jsonl").rename(snapshot / "more.jsonl")
    for path in (folder.name, f"{folder.name}/snapshots/{COMMIT}"):
        assert "`also.jsonl` leads out of the roots" in str(refused(root, path))
    (snapshot / "also.jsonl").unlink()
    (snapshot / "folder").symlink_to(outside)  # not entered
    assert texts(root, folder.name) == ["a"]
    (snapshot / "README.md").unlink()
    (snapshot / "README.md").symlink_to(outside / "secret.jsonl")
    assert "`README.md` leads out" in str(refused(root, folder.name))
    (folder / "refs" / "main").unlink()
    (folder / "refs" / "main").symlink_to(outside / "refs")
    assert "`refs/main` leads out" in str(refused(root, folder.name))
    assert str(tmp_path) not in str(refused(root, folder.name))
    (root / "way").symlink_to(outside)
    assert "not under" in str(refused(root, "way"))


def test_what_was_not_downloaded_is_said(tmp_path: Path) -> None:
    folder = cached(tmp_path, {"train.jsonl": ROW})
    next((folder / "blobs").iterdir()).unlink()
    assert "link to nothing" in str(refused(tmp_path, folder.name))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    write(tmp_path / "set", {"train.parquet": pointer})
    assert "run `git lfs pull`" in str(refused(tmp_path))


# --- rows ---------------------------------------------------------------------------------------------------------

KINDS: list[tuple[str, bytes]] = [
    ("train.jsonl", b'\xef\xbb\xbf{"prompt": "a b", "n": "1"}\n\n{"prompt": "\xc3\xa9", "n": "2"}\r\n'),
    ("train.json", b'{"prompt": "a b", "n": "1"}\n{"prompt": "\xc3\xa9", "n": "2"}'),
    ("train.csv", b'prompt,n\n"a b",1\n\xc3\xa9,2\n'),
    ("train.tsv", b"n\tprompt\n1\ta b\n2\t\xc3\xa9\n"),
    ("train.parquet", parquet(prompt=["a b", "é"], n=["1", "2"])),
]


@pytest.mark.parametrize(("name", "content"), KINDS, ids=[name for name, _ in KINDS])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path / "set", {name: content})
    assert [(line.text, line.record["n"]) for line in lines(tmp_path)] == [("a b", "1"), ("é", "2")]
    assert texts(tmp_path, field="n", max_rows=1) == ["1"]
    unknown = refused(tmp_path, field="promt").faults[0]
    assert (unknown.part, unknown.code, set(unknown.allowed)) == ("field", "unknown_column", {"prompt", "n"})


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    write(tmp_path / "set", {"b.txt": "three\n", "a.txt": "one \n\n two\n"})
    assert texts(tmp_path) == ["one ", " two", "three"]


def test_conversations_are_prompts_with_chat(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    answered = [*asked, {"role": "assistant", "content": "Hello"}]
    write(tmp_path / "set", {"train.parquet": parquet(messages=[asked, answered])})
    assert "row 1: field `messages` is not a string" in str(refused(tmp_path, field="messages"))
    error = refused(tmp_path, field="messages", chat=True)
    assert [fault.detail for fault in error.faults] == [
        "`train.parquet` row 2: field `messages` does not end with a message for the model to answer"
    ]
    (only,) = lines(tmp_path, field="messages", chat=True, max_rows=1)
    assert (only.text, only.messages) == ("Hi", ({"role": "user", "content": "Hi"},))


def test_bad_rows_are_named_by_file_and_number_all_at_once(tmp_path: Path) -> None:
    good = json_lines("fine")
    bad = b'{"prompt": ""}\n{"prompt": 1}\n[]\n{"prompt": NaN}\n{"prompt": "\\ud800"}\n\xff\n'
    write(tmp_path / "set", {"a.jsonl": good + bad, "b.jsonl": good + b"{}\n"})
    assert [fault.detail for fault in refused(tmp_path).faults] == [
        "`a.jsonl` line 2: field `prompt` is empty",
        "`a.jsonl` line 3: field `prompt` is not a string",
        "`a.jsonl` line 4: not a JSON object",
        "`a.jsonl` line 5: not JSON: NaN is not JSON",
        "`a.jsonl` line 6: half of a surrogate pair",
        "`a.jsonl` line 7: not UTF-8",
        "`b.jsonl` line 2: no field `prompt`",
    ]
    write(tmp_path / "set", {"a.jsonl": good + b"[]\n" * 1000})
    assert len(refused(tmp_path).faults) == folder_module.MAX_FAULTS


REFUSED: list[tuple[Files, str]] = [
    ({"a.jsonl": b"\n"}, "has no row"),
    ({"a.arrow": b"x", "notes.md": b"x"}, "no file of prompts"),
    ({"train.csv": "prompt\na", "train2.jsonl": ROW, "train.csv.gz": b"x"}, "are of different kinds"),
    ({"train.json": b'[{"prompt": "a"}]'}, "is one JSON list"),
    ({"train.parquet": b"PAR1"}, "`train.parquet` row 1: not readable as Parquet"),
    ({"train.csv": 'prompt\n"never closed' + "x" * (1 << 20)}, "line 2: not CSV"),
    ({"README.md": "---\nconfigs:\n- data_files: a.gz\n---", "a.gz": b"x"}, "`a.gz` is none of .jsonl"),
    ({"a\udcff\nb.jsonl": b"[]\n" + ROW}, "line 1: not a JSON object"),
]


@pytest.mark.parametrize(("files", "reason"), REFUSED)
def test_a_folder_is_refused_with_its_reason(tmp_path: Path, files: Files, reason: str) -> None:
    write(tmp_path / "set", {"README.md": "", **files} if "README.md" not in files else {**files})
    message = str(refused(tmp_path))
    assert reason in message
    message.encode()  # whatever names files have


def test_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = parquet(prompt=["x" * 1000] * 100)
    assert len(wide) < 5000
    write(tmp_path / "set", {"train.parquet": wide})
    write(tmp_path / "long", {"train.jsonl": json_lines(*"abcdefgh")})
    monkeypatch.setattr(folder_module, "MAX_FILE_BYTES", 50_000)
    error = refused(tmp_path).faults[0]
    assert (error.code, "max_rows" in error.detail) == ("too_large", True)
    assert len(texts(tmp_path, max_rows=10)) == 10
    monkeypatch.setattr(folder_module, "MAX_FILE_BYTES", 100)
    assert refused(tmp_path, "long").faults[0].code == "too_large"
    assert texts(tmp_path, "long", max_rows=2) == ["a", "b"]
    monkeypatch.setattr(layout, "MAX_ENTRIES", 3)
    write(tmp_path / "set", dict.fromkeys("abc", b""))
    assert "more than 3 files" in str(refused(tmp_path))


def test_a_machine_without_pyarrow_says_so() -> None:
    run = f"runpy.run_path({parquet_program.__file__!r}, None, '__main__')"
    hidden = f"import runpy, sys; sys.modules['pyarrow'] = None; {run}"
    command = [sys.executable, "-I", "-c", hidden]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    assert b"the extra `parquet`" in done.stdout


def test_the_engine_reports_a_folder_as_it_does_a_file(tmp_path: Path) -> None:
    write(tmp_path / "set", {"train.jsonl": json_lines("a", "")})
    config = PromptsConfig.model_validate({"folder": {"path": "set"}})
    with pytest.raises(PromptsUnusable, match=r"`train\.jsonl` line 2: field `prompt` is empty"):
        load_prompts(config, [tmp_path])
    write(tmp_path / "set", {"train.jsonl": json_lines("a", "b")})
    assert [line.text for line in load_prompts(config, [tmp_path])] == ["a", "b"]
