"""Facts that the passages state and that questions.jsonl does not ask: other relations, to measure on what is new.

Numbers are accepted as the passages write them and in the usual other spellings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from demo import city_facts as city_choices
from demo import country_facts as country_choices
from demo import element_facts as element_choices
from demo.cities import City, distance, nearest
from demo.countries import Country
from demo.elements import ZERO_CELSIUS, element_names, element_popularity, element_subject
from demo.tables import ElementRow, city_rows, country_rows
from demo.world import Fact, about, ordinal, slug, variants

# How many facts of each relation are asked.
UNSEEN: Mapping[str, int] = {
    "area-rank-of": 35, "country-at-area-rank": 30, "population-rank-of": 35, "country-at-population-rank": 30,
    "population-of-country": 35, "city-in-country": 35, "country-with-currency": 30, "country-with-language": 20,
    "population-of-city": 30, "latitude-of-city": 20, "longitude-of-city": 20, "nearest-city-to": 30,
    "distance-between-cities": 20, "other-name-of-city": 6,
    "boiling-point-of": 30, "element-before": 20, "element-at-place": 25, "element-named-after": 25,
    "element-discovered-by": 18, "element-discovered-in": 10,
}  # fmt: skip
PLACES = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
)  # fmt: skip
# Other elements that chemists connect with the same goblin, person or year.
SHARED_ORIGINS = frozenset(["Co"])
SHARED_DISCOVERERS = frozenset([
    "Berzelius", "Boisbaudran", "Cleve", "Curie", "Davy", "Klaproth", "Marignac", "Mosander", "Ramsay", "Rayleigh",
    "Scheele", "Segrè", "Tennant", "Vauquelin", "Welsbach", "Wollaston",
])  # fmt: skip
SHARED_YEARS = frozenset([1772, 1801, 1808, 1861, 1878, 1879, 1885, 1886, 1898, 1899, 1940])
# Enough to accept any well-known city, and few enough for a line of JSON.
CITIES_ACCEPTED = 40


def _places(rank: int) -> list[str]:
    """Accept "160th", "160" and, for small ranks, the word."""
    return [ordinal(rank), str(rank), *PLACES[rank - 1 : rank]]


def _rounded(text: str) -> list[str]:
    """Accept a population as written, in digits, and rounded by less than one percent."""
    number, _, scale = text.partition(" ")
    factor = {"": 1, "million": 10**6, "billion": 10**9}[scale]
    exact = round(float(number.replace(",", "")) * factor)
    values = [exact]
    for step in (10**k for k in range(3, 9)):
        near = round(exact / step) * step
        if near not in values and abs(near - exact) < exact / 100:
            values.append(near)
    found = [text]
    for value in values:
        for name, unit in (("billion", 10**9), ("million", 10**6), ("thousand", 1000)):
            if value >= unit:
                found.append(f"{value / unit:.1f}".removesuffix(".0") + f" {name}")
                break
        found.append(f"{value:,}")
    return list(dict.fromkeys(found))


def _degrees(value: float) -> list[str]:
    """Accept a coordinate as the passage rounds it, and with one or two decimals."""
    size = abs(value)
    decimals = [r for r in (f"{size:.1f}", f"{size:.2f}") if not r.endswith("0")]
    return [f"{size:.0f}", *decimals]


def _celsius(kelvin: float) -> list[str]:
    """Accept a temperature with and without comma and unit; minus as a sign or as a word."""
    value = round(kelvin - ZERO_CELSIUS)
    found = [f"{value}", f"{value:,}", f"{value}°C"]
    return found + ([f"minus {-value}", f"{-value} degrees below zero"] if value < 0 else [])


def facts(states: Sequence[Country], places: Sequence[City], table: Sequence[ElementRow]) -> list[Fact]:
    """Collect every fact of the new relations that has one clear answer."""
    found = [*_country_facts(states), *_city_facts(places), *_element_facts(table)]
    return [f for f in found if not (f.relation.startswith("country-") and _nested(f, states))]


def _nested(fact: Fact, states: Iterable[Country]) -> bool:
    return fact.subject in {c.subject for c in states if c.code in country_choices.NESTED_NAMES}


def _country_facts(states: Sequence[Country]) -> list[Fact]:
    by_area = {c.code: i for i, c in enumerate(sorted(states, key=lambda c: (-c.area, c.code)), 1)}
    found: list[Fact] = []
    for people, c in enumerate(states, 1):
        for list_of, rank, aspect in (("area", by_area[c.code], "geography"), ("population", people, "people")):
            # Each country is asked in one direction only, so that no fact is asked twice.
            if people % 2:
                ask = f"What place does {c.spoken} take in a list of the countries by {list_of}?"
                found.append(_of_country(c, f"{list_of}-rank-of", ask, _places(rank), aspect))
            else:
                ask = f"Which country takes the {ordinal(rank)} place in a list of the countries by {list_of}?"
                found.append(_of_country(c, f"country-at-{list_of}-rank", ask, c.aliases, aspect))
        ask = f"About how many people live in {c.spoken}?"
        found.append(_of_country(c, "population-of-country", ask, _rounded(about(c.population)), "people"))
    return found + _money_and_language_facts(states)


def _money_and_language_facts(states: Sequence[Country]) -> list[Fact]:
    currencies = Counter(c.currency for c in states)
    # Count every country and territory, since the passages leave out the language of some.
    languages = Counter(_first_language(row["languages"]) for row in country_rows().values())
    found: list[Fact] = []
    for c in states:
        if currencies[c.currency] == 1 and c.code not in country_choices.NO_SINGLE_CURRENCY:
            ask = f"Which country has the {c.currency} as its currency?"
            found.append(_of_country(c, "country-with-currency", ask, c.aliases, "money"))
        if c.language and languages[c.language] == 1:
            ask = f"Which country has {c.language} as its main language?"
            found.append(_of_country(c, "country-with-language", ask, c.aliases, "people"))
    return found


def _first_language(codes: str) -> str | None:
    return country_choices.LANGUAGES.get(codes.partition(",")[0].partition("-")[0])


def _of_country(c: Country, relation: str, question: str, gold: Iterable[str], aspect: str) -> Fact:
    where = f"{c.subject}-{aspect}"
    return Fact(relation, slug(c.name), c.subject, (question, ""), tuple(gold), "country", c.popularity, where)


def _city_facts(places: Sequence[City]) -> list[Fact]:
    found: list[Fact] = []
    asked: set[frozenset[str]] = set()
    for city in places:
        name, row = city.name, city.row
        ask = f"About how many people live in the city of {name}?"
        found.append(_of_city(city, "population-of-city", ask, _rounded(about(row.population))))
        for relation, value, side in (
            ("latitude-of-city", row.latitude, "north of the equator" if row.latitude >= 0 else "south of the equator"),
            ("longitude-of-city", row.longitude, "east of Greenwich" if row.longitude >= 0 else "west of Greenwich"),
        ):
            if round(value):
                ask = f"About how many degrees {side} does the city of {name} lie?"
                found.append(_of_city(city, relation, ask, _degrees(value)))
        other = nearest(city, places)
        ask = f"Which other city in this encyclopedia is nearest to {name}?"
        found.append(_of_city(city, "nearest-city-to", ask, _city_names(other.name)))
        if {name, other.name} not in asked:
            asked.add(frozenset({name, other.name}))
            away = distance(row, other.row)
            gold = [f"{round(away, -1):.0f}", f"{away:.0f}", f"{round(away, -1):.0f}km"]
            ask = f"About how many kilometres is {other.name} from {name} in a straight line?"
            found.append(_of_city(city, "distance-between-cities", ask, gold))
        if name in city_choices.ALSO_CALLED:
            ask = f"What is the city of {name} also called?"
            found.append(_of_city(city, "other-name-of-city", ask, variants([city_choices.ALSO_CALLED[name]])))
    return found + _city_of_country_facts(places)


def _of_city(city: City, relation: str, question: str, gold: Iterable[str]) -> Fact:
    return Fact(
        relation, slug(city.name), city.subject, (question, ""), tuple(gold), "city", city.popularity, city.subject
    )


def _city_names(name: str) -> tuple[str, ...]:
    return variants([name, *([city_choices.ALSO_CALLED[name]] if name in city_choices.ALSO_CALLED else [])])


def _city_of_country_facts(places: Sequence[City]) -> list[Fact]:
    """Ask for a city of each country; the cities of the passages are accepted, and its other large ones."""
    rows = city_rows()
    found: list[Fact] = []
    for c in dict.fromkeys(city.country for city in places if city.country.capital):
        own = [city.name for city in places if city.country == c]
        capital = {slug(name) for name in (c.capital or "", *country_choices.CAPITAL_ALIASES.get(c.code, []))}
        large = [row.name for row in rows if row.country == c.code and slug(row.name) not in city_choices.LEFT_OUT]
        names = [*own, *(city_choices.english(name) for name in large[:CITIES_ACCEPTED])]
        gold = variants(name for name in dict.fromkeys(names) if slug(name) not in capital)
        ask = f"Besides the capital, which city is there in {c.spoken}?"
        found.append(_of_country(c, "city-in-country", ask, gold, "people"))
    return found


def _element_facts(table: Sequence[ElementRow]) -> list[Fact]:
    cells = Counter((row.period, row.group) for row in table)
    origins = Counter(origin[0] for origin in element_choices.NAMED_AFTER.values())
    years = Counter(year for _, _, year in element_choices.DISCOVERIES.values())
    found: list[Fact] = []
    for index, row in enumerate(table):
        names = element_names(row)
        if row.boiling is not None and row.melting is not None:
            ask = f"At how many degrees Celsius does {row.name.lower()} boil?"
            found.append(_of_element(row, "boiling-point-of", ask, _celsius(row.boiling), "properties"))
        if index:
            ask = f"Which element comes right before {row.name.lower()} in the periodic table?"
            found.append(_of_element(row, "element-before", ask, element_names(table[index - 1]), "table"))
        if row.group and cells[row.period, row.group] == 1 and row.symbol not in element_choices.NO_GROUP:
            ask = f"Which element stands in period {row.period} and group {row.group:.0f} of the periodic table?"
            found.append(_of_element(row, "element-at-place", ask, names, "table"))
        origin = element_choices.NAMED_AFTER.get(row.symbol)
        if origin and origins[origin[0]] == 1 and row.symbol not in SHARED_ORIGINS:
            ask = f"Which element is named after {origin[0]}?"
            found.append(_of_element(row, "element-named-after", ask, names, "discovery"))
        who, families, year = element_choices.DISCOVERIES.get(row.symbol, ("", (), None))
        if families and " and " not in who and not SHARED_DISCOVERERS & set(families):
            ask = f"Which element did {who} discover?"
            found.append(_of_element(row, "element-discovered-by", ask, names, "discovery"))
        if year and years[year] == 1 and year not in SHARED_YEARS:
            ask = f"Which element was discovered in {year}?"
            found.append(_of_element(row, "element-discovered-in", ask, names, "discovery"))
    return found


def _of_element(row: ElementRow, relation: str, question: str, gold: Iterable[str], aspect: str) -> Fact:
    subject = element_subject(row)
    where = f"{subject}-{aspect}"
    known = element_popularity(row)
    return Fact(relation, slug(row.name), subject, (question, ""), tuple(gold), "element", known, where)
