"""Folders of models that are not what they seem: nothing outside the roots is read, and no code of theirs runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from ppo_engine.config import ChatConfig, ModelReward, ModelSource, SeparateValue
from ppo_engine.data.prompts import Line, PromptSource
from ppo_engine.errors import ModelUnavailable, PromptsUnusable
from ppo_engine.folders import MAX_COUNT, check_folder
from ppo_engine.models.critic import make_critic
from ppo_engine.models.loading import load_language_model, load_tokenizer, locate_adapter
from ppo_engine.rewards.model import load_reward_model
from tests.support.tiny_models import byte_tokenizer, tiny_llama

SOURCE = ModelSource(path="m")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model, to copy."""
    return tiny_llama(tmp_path_factory.mktemp("made") / "m")


@pytest.fixture
def root(tmp_path: Path, made: Path) -> Path:
    """A root with the model `m`; the model `outside` is beside it."""
    shutil.copytree(made, tmp_path / "outside")
    return shutil.copytree(made, tmp_path / "root" / "m").parent


def change(file: Path, **values: Any) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(settings | values))


def weights_outside(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder / "moved")
    (folder / "model.safetensors").symlink_to(folder.parents[1] / "outside" / "model.safetensors")


def settings_outside(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("../../outside/tokenizer.json")


def templates_outside(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "t.jinja").symlink_to("/etc/passwd")


def endless_link(folder: Path) -> None:
    (folder / "vocab.json").symlink_to("vocab.json")


def pipe(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    os.mkfifo(folder / "generation_config.json")


def shards_at(place: str) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        target = place.format(outside=folder.parents[1] / "outside")
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, target)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    made.__name__ = f"shards at {place}"
    return made


def config(**values: Any) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        change(folder / "config.json", **values)

    made.__name__ = f"config {str(values)[:60]}"
    return made


def deep_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


HOSTILE: list[tuple[Callable[[Path], None], str]] = [
    (weights_outside, "`model.safetensors` in the folder `m` leads out"),
    (settings_outside, "`tokenizer.json` in the folder `m` leads out"),
    (templates_outside, "`t.jinja` .* leads out"),
    (endless_link, "cannot be read: RuntimeError|cannot be read: OSError"),
    (pipe, "`generation_config.json` .* is no ordinary file"),
    (shards_at("../../outside/model.safetensors"), "names weights that are not beside it"),
    (shards_at("{outside}/model.safetensors"), "names weights that are not beside it"),
    (shards_at(".."), "names weights that are not beside it"),
    (config(attn_implementation="someone/kernel"), "attention from elsewhere: `someone/kernel`"),
    (config(_attn_implementation="paged|someone/kernel@main:x"), "attention from elsewhere"),
    (config(text_config={"_attn_implementation": "someone/kernel"}), "attention from elsewhere"),
    (config(attn_implementation={"": "sdpa", "text": "someone/kernel"}), "attention from elsewhere"),
    (config(num_hidden_layers=10**7), f"`num_hidden_layers` in config.json is larger than {MAX_COUNT}"),
    (config(num_labels=10**8), "`num_labels` in config.json is larger"),
    (deep_config, "cannot be read: RecursionError"),
]


@pytest.mark.parametrize(("harm", "reason"), HOSTILE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_folder_that_leads_elsewhere_is_refused(root: Path, harm: Callable[[Path], None], reason: str) -> None:
    harm(root / "m")
    with pytest.raises(ModelUnavailable, match=reason):
        load_language_model(SOURCE, [root])


def test_it_is_refused_wherever_a_spec_names_it(root: Path) -> None:
    language = load_language_model(SOURCE, [root])
    weights_outside(root / "m")
    for load in (
        lambda: load_tokenizer(SOURCE, [root]),
        lambda: locate_adapter(SOURCE, [root]),
        lambda: load_reward_model(ModelReward(source=SOURCE), [root], torch.device("cpu")),
        lambda: make_critic(SeparateValue(source=SOURCE), language, [root]),
    ):
        with pytest.raises(ModelUnavailable, match="leads out"):
            load()


@pytest.mark.parametrize("name", ["megatron_config", "corda_config", "lora_ga_config", "eva_config"])
def test_an_adapter_may_not_name_modules_and_caches(root: Path, name: str) -> None:
    change(root / "m" / "adapter_config.json", **{name: {"cache_file": "/tmp/x"}, "megatron_core": "os"})
    with pytest.raises(ModelUnavailable, match=f"`{name}` in adapter_config.json is not supported"):
        locate_adapter(SOURCE, [root])


@pytest.mark.parametrize(
    "allow",
    [
        config(attn_implementation="sdpa", _attn_implementation=None),
        config(num_hidden_layers=2, layers=True),
        lambda folder: (folder / "README.md").write_text("x"),
        lambda folder: (folder / "copy.json").symlink_to("config.json"),
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),  # the library says so itself
    ],
)
def test_ordinary_folders_pass(root: Path, allow: Callable[[Path], None]) -> None:
    allow(root / "m")
    check_folder(root / "m", [root])


# --- code and pickles ---------------------------------------------------------------------------------------------


class Bomb:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_code_and_pickles_in_a_folder_stay_what_they_are(root: Path, tmp_path: Path) -> None:
    """The folder works, because nobody needs them; and nothing of them has run."""
    trace, folder = tmp_path / "trace", root / "m"
    for name in ("training_args.bin", "optimizer.pt", "pytorch_model.bin", "adapter_model.bin", "scheduler.pkl"):
        torch.save(Bomb(trace), folder / name)
    code = f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
    for name in ("evil.py", "__init__.py", "modeling_llama.py", "configuration_llama.py", "tokenization_llama.py"):
        (folder / name).write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    change(
        folder / "config.json",
        auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForCausalLM": "evil.M"},
        custom_pipelines={"evil": {"impl": "evil.P"}},
    )
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    load_tokenizer(SOURCE, [root])
    load_language_model(SOURCE, [root])
    assert not trace.exists()


@pytest.mark.parametrize("kind", ["policy", "tokenizer"])
def test_an_architecture_that_is_only_code_is_refused(root: Path, tmp_path: Path, kind: str) -> None:
    trace, folder = tmp_path / "trace", root / "m"
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\n")
    change(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C"})
    (folder / "tokenizer.json").unlink()
    change(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.T", None]})
    with pytest.raises(ModelUnavailable):
        load_language_model(SOURCE, [root]) if kind == "policy" else load_tokenizer(SOURCE, [root])
    assert not trace.exists()


@pytest.mark.parametrize("place", ["absolute", "relative"])
def test_a_tokenizer_reads_no_file_that_its_settings_name(root: Path, place: str) -> None:
    folder, secret = root / "m", root.parent / "secret.json"
    vocabulary = byte_tokenizer().get_vocab()
    secret.write_text(json.dumps(vocabulary | {"SECRET": 400}))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    named = str(secret) if place == "absolute" else os.path.relpath(secret)
    files = dict.fromkeys(("vocab_file", "tokenizer_file", "added_tokens_file", "special_tokens_map_file"), named)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **files}))
    assert "SECRET" not in load_tokenizer(SOURCE, [root]).get_vocab()


# --- chat templates -----------------------------------------------------------------------------------------------

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch ' ~ trace) }}",
    "{{ messages.append('x') }}",
    "{{ self._TemplateReference__context }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ raise_exception.__globals__['sys'].modules['os'].system('true') }}",
    "{% for i in range(10000000) %}x{% endfor %}",
    "{{ '%s'.__mod__.__self__.__class__ }}",
    "{{ ('{0.__class__.__mro__}').format(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{{ 1 / 0 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_cannot_leave_its_sandbox(template: str) -> None:
    """It fails, or what it asked for is nothing."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(PromptsUnusable, match=r"chat template refuses a prompt|none of the 1 prompts"):
        PromptSource([Line("Hi")], tokenizer, max_tokens=None, shuffle=False, seed=0, chat=ChatConfig())


# --- the hub ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with the repository `someone/m`, laid out as huggingface_hub does; nothing is fetched."""
    repository = tmp_path / "cache" / "models--someone--m"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(made, repository / "blobs")
    snapshot.mkdir(parents=True)
    for blob in (repository / "blobs").iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return snapshot


HUB = ModelSource(hub="someone/m")


@pytest.mark.usefixtures("cache")
def test_a_model_of_the_hub_is_loaded_from_its_folder() -> None:
    load_tokenizer(HUB, [])
    load_language_model(HUB, [])


def test_an_index_on_the_hub_cannot_lead_to_other_models(cache: Path, root: Path) -> None:
    names = load_file(cache / "model.safetensors")
    (cache / "model.safetensors").unlink()
    target = os.path.relpath(root / "m" / "model.safetensors", cache)
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, target)}
    (cache / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match="names weights that are not beside it"):
        load_language_model(HUB, [])


def test_an_adapter_on_the_hub_cannot_lead_to_a_base_on_this_machine(cache: Path, root: Path) -> None:
    for file in cache.iterdir():
        file.unlink()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(root / "m")}
    (cache / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelUnavailable, match=r"has no config\.json"):
        load_language_model(HUB, [])


def test_a_name_of_the_hub_is_no_folder_of_this_machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(root)
    for load in (load_language_model, load_tokenizer):
        with pytest.raises(ModelUnavailable, match="m cannot be loaded"):
            load(ModelSource(hub="m"), [])


@pytest.mark.parametrize("revision", ["..", "../x", "a/../b", "/etc", "a//b", "a\nb", "", "a b", "~x"])
def test_a_revision_names_no_file(revision: str) -> None:
    with pytest.raises(ValueError, match="revision"):
        ModelSource(hub="someone/m", revision=revision)


@pytest.mark.parametrize("revision", ["main", "v1.0.2", "refs/pr/3", "0123abc", "feature/x_y"])
def test_revisions_of_git_are_taken(revision: str) -> None:
    assert ModelSource(hub="someone/m", revision=revision).revision == revision


# --- files that lie about their sizes -----------------------------------------------------------------------------


def safetensors(header: bytes, size: int | None = None, data: bytes = bytes(64)) -> bytes:
    return (len(header) if size is None else size).to_bytes(8, "little") + header + data


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES = {
    "a header beyond the file": safetensors(b"{}", 1 << 20),
    "a header beyond memory": safetensors(b"{}", (1 << 64) - 1),
    "a header of nearly a terabyte": safetensors(b"{}", 1 << 40),
    "data beyond the file": safetensors(json.dumps({"w": tensor(0, 1 << 40, [1 << 38])}).encode()),
    "a shape beyond 64 bits": safetensors(json.dumps({"w": tensor(0, 64, [1 << 62, 1 << 62])}).encode()),
    "a negative offset": safetensors(json.dumps({"w": tensor(-64, 64, [32])}).encode()),
    "an end before its begin": safetensors(json.dumps({"w": tensor(64, 0, [16])}).encode()),
    "tensors that overlap": safetensors(json.dumps({"w": tensor(0, 64, [16]), "v": tensor(0, 64, [16])}).encode()),
    "a shape that is not its size": safetensors(json.dumps({"w": tensor(0, 64, [1000])}).encode()),
    "a type of objects": safetensors(json.dumps({"w": tensor(0, 64, [16], "O")}).encode()),
    "a header without a floor": safetensors(b"[" * 100_000),
    "no header at all": b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_safetensors_that_lie_are_refused(root: Path, lie: str) -> None:
    (root / "m" / "model.safetensors").write_bytes(LIES[lie])
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load_language_model(SOURCE, [root])
