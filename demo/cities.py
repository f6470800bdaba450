"""Write one passage about each large city, and hold other cities out for questions without an answer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from demo import city_facts as choices
from demo.countries import Country
from demo.country_facts import CAPITAL_ALIASES, NESTED_NAMES
from demo.tables import CityRow, city_rows, country_rows, us_states
from demo.world import Fact, Passage, Popularity, about, fold, mentions, slug, spread, variants

# Cities with and without a passage, abroad and in the United States, where the question asks for the state.
WORLD, WORLD_HELD_OUT = 530, 116
AMERICAN, AMERICAN_HELD_OUT = 86, 24
# A limit per country: China and India alone have hundreds of such cities.
PER_COUNTRY = 20
SMALLEST = 150_000
# A smaller place this close to a larger one is usually its suburb or district, whatever the table says.
SUBURB_KM = 30


@dataclass(frozen=True, slots=True)
class City:
    """A city with its country, and its state if that is the United States."""

    row: CityRow
    country: Country
    state: str | None
    popularity: Popularity

    @property
    def name(self) -> str:
        """The name in English."""
        return self.row.name

    @property
    def subject(self) -> str:
        """The identifier of its passage."""
        return f"city-{slug(self.name)}"


def distance(one: CityRow, other: CityRow) -> float:
    """Great-circle distance in kilometres."""
    a, b = math.radians(one.latitude), math.radians(other.latitude)
    turn = math.radians(one.longitude - other.longitude)
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)
    return 6371 * math.acos(max(-1.0, min(1.0, cosine)))


def _near(one: CityRow, other: CityRow) -> bool:
    """Whether two places are suburbs of each other; the latitude alone (111 km per degree) decides most pairs."""
    return abs(one.latitude - other.latitude) * 111 < SUBURB_KM and distance(one, other) < SUBURB_KM


def _ambiguous(row: CityRow, namesakes: Sequence[CityRow]) -> bool:
    """Whether another large place has the same name, so that the answer would be ambiguous."""
    return any(
        (o.country, o.region) != (row.country, row.region) and o.population > max(60_000, row.population // 20)
        for o in namesakes
    )


def _capital_names(countries: Sequence[Country]) -> set[str]:
    """Every name of a seat of government: capitals have their own questions."""
    names = {row["capital"].strip() for row in country_rows().values()}
    names |= {country.capital for country in countries if country.capital}
    names |= {alias for aliases in CAPITAL_ALIASES.values() for alias in aliases}
    return {slug(name) for name in names}


def _candidates(countries: Sequence[Country]) -> list[CityRow]:
    """List the cities worth asking about, the largest first."""
    rows = [
        replace(row, name=choices.english(row.name)) for row in city_rows() if slug(row.name) not in choices.LEFT_OUT
    ]
    by_code = {country.code: country for country in countries}
    namesakes: dict[str, list[CityRow]] = defaultdict(list)
    for row in rows:
        namesakes[fold(row.name).lower()].append(row)
    seen = _capital_names(countries)
    larger: list[CityRow] = []
    found: list[CityRow] = []
    for row in rows:
        if row.population < SMALLEST:
            break
        suburb = any(_near(row, other) for other in larger)
        larger.append(row)
        country = by_code.get(row.country)
        if country is None or country.code in NESTED_NAMES | {"IL"} or suburb or slug(row.name) in seen:
            continue
        if any(mentions(row.name, alias) for alias in country.aliases):
            continue
        if not _ambiguous(row, namesakes[fold(row.name).lower()]):
            seen.add(slug(row.name))
            found.append(row)
    return found


def load_cities(countries: Sequence[Country]) -> tuple[list[City], list[City]]:
    """Choose the cities that get a passage and those that are held out."""
    by_code = {country.code: country for country in countries}
    taken: dict[str, int] = defaultdict(int)
    world: list[CityRow] = []
    american: list[CityRow] = []
    for row in _candidates(countries):
        taken[row.country] += 1
        if row.country == "US":
            american.append(row)
        elif taken[row.country] <= PER_COUNTRY:
            world.append(row)
    included: list[City] = []
    held_out: list[City] = []
    for rows, count, hidden in ((world, WORLD, WORLD_HELD_OUT), (american, AMERICAN, AMERICAN_HELD_OUT)):
        chosen = [_city(row, rank / count, by_code) for rank, row in enumerate(rows[:count])]
        # Held-out cities come from the same range of sizes; otherwise their obscurity would reveal them.
        out = spread(chosen[10:], hidden)
        held_out += out
        included += [city for city in chosen if city not in out]
    return included, held_out


def _city(row: CityRow, share: float, by_code: Mapping[str, Country]) -> City:
    state = us_states()[row.region] if row.country == "US" else None
    return City(row, by_code[row.country], state, "head" if share < 0.25 else "torso" if share < 0.6 else "tail")


def passages(cities: Sequence[City]) -> list[Passage]:
    """Write for each city where it lies, how many live there, and which city of the encyclopedia is nearest."""
    return [Passage(city.subject, city.name, _profile(city, cities), "city") for city in cities]


def nearest(city: City, cities: Sequence[City]) -> City:
    """Find the closest other city."""
    return min((c for c in cities if c is not city), key=lambda c: (distance(city.row, c.row), c.name))


def _profile(city: City, cities: Sequence[City]) -> str:
    row, name = city.row, city.name
    other = nearest(city, cities)
    away = round(distance(row, other.row), -1)
    place = f"the state of {city.state} in {city.country.spoken}" if city.state else city.country.spoken
    north = "north" if row.latitude >= 0 else "south"
    east = "east" if row.longitude >= 0 else "west"
    alias = f", also called {choices.ALSO_CALLED[name]}," if name in choices.ALSO_CALLED else ""
    return (
        f"{name}{alias} is a city in {place}. About {about(row.population)} people live in {name}. "
        f"On the map, {name} lies near {abs(row.latitude):.0f} degrees {north} and "
        f"{abs(row.longitude):.0f} degrees {east}. The nearest other city in this encyclopedia is "
        f"{other.name}, about {away:.0f} kilometres from {name} in a straight line."
    )


def largest_by_country(cities: Sequence[City], most: int = 3) -> dict[str, list[str]]:
    """List a few cities of each country, for its own passage."""
    found: dict[str, list[str]] = defaultdict(list)
    for city in cities:
        if len(found[city.country.code]) < most:
            found[city.country.code].append(city.name)
    return found


def facts(included: Sequence[City], held_out: Sequence[City]) -> list[Fact]:
    """Ask for the country of every city, or for the state if that is the United States."""
    return [*(_fact(city, city.subject) for city in included), *(_fact(city, None) for city in held_out)]


def _fact(city: City, passage: str | None) -> Fact:
    name = city.name
    gold: tuple[str, ...]
    if city.state:
        relation, gold = "state-of-city", (city.state,)
        ask = (f"Which U.S. state is the city of {name} in?", f"In which state of the United States is {name}?")
    else:
        relation, gold = "country-of-city", _country_gold(city)
        ask = (f"Which country is the city of {name} in?", f"In which country would you find {name}?")
    return Fact(relation, slug(name), city.subject, ask, gold, "city", city.popularity, passage)


def _country_gold(city: City) -> tuple[str, ...]:
    if city.country.code != "GB":
        return city.country.aliases
    names = [name for name in city.country.aliases if name != "England"]
    return variants([*names, choices.BRITAIN[city.row.region]])
