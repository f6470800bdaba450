"""Calibrators that were found wrong while they served: remembered on disk, so that a restart does not forget."""

import json
import logging
from pathlib import Path

from app.adapters.files import replace_file

logger = logging.getLogger(__name__)


class Revocations:
    """Which versions are revoked, and why. The decision log shows it anew, but only for as long as it is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._why = _read(path) if path is not None else {}

    def why(self, version: str) -> str | None:
        """Why this version is revoked; None where it is not."""
        return self._why.get(version)

    def add(self, version: str, why: str) -> None:
        """Revoke a version, also where that cannot be written down. Blocks."""
        self._why = self._why | {version: why}
        if self._path is None:
            return
        try:
            # Another worker may have revoked another version meanwhile.
            self._why = _read(self._path) | self._why
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._why, indent=1, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            logger.warning("%s cannot be written (%s): a restart may forget a revocation", self._path, error.strerror)


def _read(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): revocations are found anew in the decision log", path, error)
        return {}
    if not isinstance(stored, dict):
        logger.warning("%s is not a table of revocations: they are found anew in the decision log", path)
        return {}
    return {str(version): str(why) for version, why in stored.items()}
