"""How this gateway is operated. Read once from FETCHWISE_* variables, and passed on as arguments, group by group.

Every package but `core` may import it. Learned numbers are not here: they are in the calibrator artifact.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from app.errors import ConfigurationError
from app.settings.groups import (
    PREFIX,
    Access,
    Calibration,
    Chat,
    Drift,
    Economics,
    Embedder,
    Faults,
    Group,
    Learning,
    Limits,
    Log,
    Reader,
    Server,
    Vectors,
)


class Settings(Group):
    """All groups, and what follows from more than one of them."""

    server: Server
    access: Access
    reader: Reader
    vectors: Vectors
    embedder: Embedder
    faults: Faults
    calibration: Calibration
    log: Log
    learning: Learning
    drift: Drift
    economics: Economics
    chat: Chat
    limits: Limits

    @classmethod
    def of(cls, **given: object) -> "Settings":
        """Settings by their variables in lower case without the prefix, such as `reader_model`; the rest is default.

        ConfigurationError names every variable that is unknown or has a wrong value.
        """
        known = variables()
        values = {f"{PREFIX}{name.upper()}": value for name, value in given.items()}
        problems = [_unknown(name, known) for name in values if name not in known]
        by_group: dict[str, dict[str, object]] = {group: {} for group in cls.model_fields}
        for name in values.keys() & known.keys():
            by_group[known[name][0]][name] = values[name]
        try:
            settings = cls.model_validate(by_group)
        except ValidationError as error:
            problems += [
                f"{problem['loc'][1]}: {problem['msg'].removeprefix('Value error, ')}"
                for problem in error.errors(include_input=False)
            ]
        if problems:
            # Without the cause: it holds the values, and some are secret.
            raise ConfigurationError("; ".join(problems)) from None
        return settings

    @property
    def permits(self) -> int:
        """How many questions to answer at once: an embedded reader with a longer queue would only time out."""
        most = self.limits.max_in_flight
        return min(most, 8 * self.reader.slots) if self.reader.backend == "embedded" else most

    @property
    def keys_at(self) -> Path | str:
        """The path or URL of the keys, if there are any."""
        return self.access.keys or self.server.data_dir / "keys.json"

    @property
    def decision_log_at(self) -> str | None:
        """The path or URL of the decision log; None if there is none."""
        if self.log.database == "off":
            return None
        return self.log.database or str(self.server.data_dir / "decisions.sqlite3")


def read_settings(**given: object) -> Settings:
    """The settings of the environment; what is `given`, such as options of a command, overrides them."""
    ours = {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}
    return Settings.of(**{name.removeprefix(PREFIX).lower(): value for name, value in ours.items()} | given)


def variables() -> dict[str, tuple[str, FieldInfo]]:
    """Every variable, with its group and its field."""
    return {
        str(field.alias): (name, field)
        for name, group in Settings.model_fields.items()
        for field in group.annotation.model_fields.values()  # type: ignore[union-attr]
    }


def _unknown(name: str, known: Mapping[str, object]) -> str:
    short = {one.removeprefix(PREFIX): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), short, n=1)
    return f"{name} is not a setting" + (f": did you mean {short[near[0]]}?" if near else "")
