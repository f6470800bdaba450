"""Documents in memory, with switchable faults."""

from threading import Lock

from app.errors import DocumentConflict
from app.ports import Document
from app.storage.folder import checked, revision_of


class FakeDocuments:
    """A working folder of documents; `fail_with` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.fail_with: Exception | None = None
        self._lock = Lock()

    def read(self, name: str) -> Document | None:
        self._maybe_fail()
        content = self.stored.get(checked(name))
        return None if content is None else Document(content, revision_of(content))

    def write(self, name: str, content: bytes, *, expected: str | None) -> str:
        with self._lock:
            found = self.read(name)
            if (found.revision if found else None) != expected:
                raise DocumentConflict(f"{name} was changed by another writer")
            self.stored[name] = content
        return revision_of(content)

    def names(self) -> list[str]:
        self._maybe_fail()
        return sorted(self.stored)

    def where(self, name: str) -> str:
        return f"{name} in memory"

    def _maybe_fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with
