"""Documents as rows of one table, for gateways that share a database and no disk."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from app.errors import DocumentConflict, StorageUnavailable
from app.ports import Document, Documents
from app.storage.database import Database, open_database
from app.storage.folder import FolderDocuments, checked, revision_of

_TABLE = Table(
    "documents",
    MetaData(),
    Column("folder", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("revision", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    # Unix seconds; for people.
    Column("changed_at", Double, nullable=False),
)


def prepare_documents(connection: Connection) -> None:
    """Make the table where it is not there yet."""
    _TABLE.metadata.create_all(connection)


def open_documents(where: str | Path, folder: str, *, setting: str) -> Documents:
    """The documents in a folder on disk, or in a folder of this name in a database given by its URL."""
    if "://" in str(where):
        return SqlDocuments(open_database(str(where), prepare_documents, setting=setting), folder)
    return FolderDocuments(Path(where))


class SqlDocuments:
    """One folder of documents in a database that `prepare_documents` has seen."""

    def __init__(self, database: Database, folder: str) -> None:
        self._database = database
        self._folder = folder

    def read(self, name: str) -> Document | None:
        """The row of this name."""
        wanted = select(_TABLE.c.content, _TABLE.c.revision).where(*self._is(name))
        with self._translated("read", name), self._database.reading() as connection:
            row = connection.execute(wanted).one_or_none()
        return None if row is None else Document(bytes(row.content), row.revision)

    def write(self, name: str, content: bytes, *, expected: str | None) -> str:
        """Insert the row, or replace it if it still has the expected revision."""
        revision = revision_of(content)
        values = {"revision": revision, "content": content, "changed_at": time.time()}
        with self._translated("written", name), self._database.writing() as connection:
            if expected is None:
                connection.execute(insert(_TABLE).values(folder=self._folder, name=checked(name), **values))
                return revision
            replace = update(_TABLE).where(*self._is(name), _TABLE.c.revision == expected).values(values)
            if connection.execute(replace).rowcount == 0:
                raise DocumentConflict(f"{self.where(name)} was changed by another writer")
        return revision

    def names(self) -> list[str]:
        """The names of this folder's rows."""
        with self._translated("read", ""), self._database.reading() as connection:
            return sorted(connection.scalars(select(_TABLE.c.name).where(_TABLE.c.folder == self._folder)))

    def where(self, name: str) -> str:
        """Folder, name and database."""
        return f"{self._folder}/{name} in {self._database.name}"

    def _is(self, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return _TABLE.c.folder == self._folder, _TABLE.c.name == checked(name)

    @contextmanager
    def _translated(self, done: str, name: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise DocumentConflict(f"{self.where(name)} was written by another writer") from error
        except SQLAlchemyError as error:
            raise StorageUnavailable(f"{self.where(name)} cannot be {done}: {getattr(error, 'orig', error)}") from error
