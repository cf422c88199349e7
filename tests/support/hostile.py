"""What an attacker would write where a path, a name or a text is expected."""

from __future__ import annotations

from pathlib import Path

HOSTILE_PATHS = [
    "../secret.txt",
    "sub/../../secret.txt",
    "sub/../../../../../../etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/proc/self/cwd",
    "out.txt",
    "up/secret.txt",
    "loop",
    "loop/p.txt",
    "sub/p.txt/x",
    "sub/p.txt\x00.txt",
    "~/.ssh/id_rsa",
    "..\\secret.txt",
    "file:///etc/passwd",
    "%2e%2e/secret.txt",
    "\u2025/secret.txt",
    "a" * 4096,
    "a/" * 2000,
    "\n",
    "$HOME",
]
"""None of them lies in a root that `root_with_ways_out` made."""


def root_with_ways_out(folder: Path) -> Path:
    """A root with the file `sub/p.txt` and with links out of it; `secret.txt` lies beside it."""
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "p.txt").write_text("prompt")
    (folder / "out.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    return folder
