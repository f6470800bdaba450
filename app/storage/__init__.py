"""Three kinds of storage behind ports: small documents with revisions, the rows of the decision log, and rates of keys.

Documents are files or rows of a database, the log is on SQLite or PostgreSQL, rates are in shared memory. Only this
package imports SQLAlchemy. `calibrators` and the layers above it may import it.
"""

from app.ports import Documents, Rows
from app.settings import Settings
from app.storage.decisions import SqlDecisionStore
from app.storage.fleet_rates import FleetRates
from app.storage.folder import FolderDocuments
from app.storage.rates import SharedRates


def open_rows(settings: Settings) -> SqlDecisionStore | None:
    """The rows of the decision log, whose tables are made if they are new; None if there is no log. Blocks."""
    if settings.decision_log_at is None:
        return None
    return SqlDecisionStore.open(settings.decision_log_at, texts=settings.log.texts)


def state_documents(settings: Settings, rows: Rows | None) -> Documents:
    """Documents of all gateways that write to one PostgreSQL log, or else of those that use one data directory."""
    if rows is not None and str(settings.decision_log_at).startswith("postgresql"):
        return rows.documents
    return FolderDocuments(settings.server.data_dir, private=True)


def open_fleet_rates(settings: Settings, rates: SharedRates) -> FleetRates | None:
    """Exchanges rates through the database that the keys are in; None if they are in a file. Blocks."""
    where = str(settings.keys_at)
    return FleetRates(rates, where) if where.startswith("postgresql") else None
