"""Write three passages about every country, and collect the facts that can be asked about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo import country_facts as choices
from demo.tables import country_rows
from demo.world import Fact, Passage, Popularity, about, listing, ordinal, sentence, slug, variants


@dataclass(frozen=True, slots=True)
class Country:
    """A country as the encyclopedia describes it; None for facts that it leaves out."""

    code: str
    name: str
    capital: str | None
    continent: str
    currency: str
    currency_code: str
    domain: str
    calling_code: str
    population: int
    area: int
    language: str | None
    neighbours: tuple[str, ...]
    iso3: str
    popularity: Popularity

    @property
    def spoken(self) -> str:
        """The name inside a sentence."""
        return spoken(self.code, self.name)

    @property
    def subject(self) -> str:
        """The stem of the identifiers of its passages."""
        return f"country-{slug(self.name)}"

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every name that counts as naming this country."""
        return country_gold(self.code, self.name)


def spoken(code: str, name: str) -> str:
    """Add the article that some names need in English."""
    return f"the {name}" if code in choices.WITH_ARTICLE else name


def country_gold(code: str, name: str) -> tuple[str, ...]:
    """List the answers that name the country, the usual one first."""
    return variants([name, *choices.COUNTRY_ALIASES.get(code, [])])


def country_name(code: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the name of any country or territory of the table."""
    listed: str = rows[code]["name"]
    return choices.NAMES.get(code, listed.strip())


def load_countries() -> list[Country]:
    """Read the sovereign states, the most populous first."""
    rows = country_rows()
    kept = sorted(
        (code for code in rows if code not in choices.NOT_COUNTRIES),
        key=lambda code: (-rows[code]["population"], code),
    )
    return [_country(code, rank, rows) for rank, code in enumerate(kept)]


def _country(code: str, rank: int, rows: Mapping[str, Mapping[str, Any]]) -> Country:
    row = rows[code]
    phone = row["phone"].strip().removeprefix("+").split(" and ")[0]
    language = choices.LANGUAGES.get(row["languages"].split(",")[0].split("-")[0])
    near = [n for n in row["neighbours"].split(",") if n and (code, n) not in choices.NO_BORDER]
    return Country(
        code=code,
        name=country_name(code, rows),
        capital=None if code in choices.NO_SINGLE_CAPITAL else choices.CAPITALS.get(code, row["capital"].strip()),
        continent=choices.CONTINENTS[row["continentcode"]],
        currency=choices.CURRENCIES.get(code, row["currencyname"].lower()),
        currency_code=choices.CURRENCY_CODES.get(code, row["currencycode"]),
        domain=row["tld"],
        calling_code=f"+{phone}",
        population=row["population"],
        area=row["areakm2"],
        language=language if code in choices.ONE_LANGUAGE else None,
        neighbours=tuple(sorted(near, key=lambda n: country_name(n, rows))),
        iso3=row["iso3"],
        popularity="head" if rank < 45 else "torso" if rank < 110 else "tail",
    )


def passages(countries: Sequence[Country], cities: Mapping[str, Sequence[str]]) -> list[Passage]:
    """Write geography, people and money of each country; `cities` lists some large cities by country code."""
    rows = country_rows()
    by_area = {c.code: i for i, c in enumerate(sorted(countries, key=lambda c: (-c.area, c.code)), 1)}
    found: list[Passage] = []
    for rank, country in enumerate(countries, 1):
        near = [spoken(code, country_name(code, rows)) for code in country.neighbours]
        texts = {
            "geography": _geography(country, near, by_area[country.code]),
            "people": _people(country, rank, cities.get(country.code, ())),
            "money": _money(country),
        }
        titles = {"geography": "geography", "people": "people and cities", "money": "money and telephone"}
        for aspect, text in texts.items():
            found.append(Passage(f"{country.subject}-{aspect}", f"{country.name}: {titles[aspect]}", text, "country"))
    return found


def _geography(country: Country, near: Sequence[str], rank: int) -> str:
    name = country.spoken
    where = "on two continents" if country.code in {"EG", "ID", "KZ", "RU", "TR"} else f"in {country.continent}"
    if country.code == "AU":
        where = "that fills a whole continent"
    parts = [f"{sentence(name)} is a country {where}."]
    if country.capital and country.code not in choices.HELD_OUT_CAPITALS:
        parts.append(f"The capital city of {name} is {country.capital}{'' if country.capital.endswith('.') else '.'}")
    if near:
        parts.append(f"{sentence(name)} shares a land border with {listing(near)}.")
    else:
        parts.append(f"{sentence(name)} has no land border with any other country, since the sea surrounds it.")
    if len(" ".join(parts).split()) < 38:
        parts.append(f"In a list of the countries by area, {name} takes the {ordinal(rank)} place from the top.")
    else:
        parts.append(f"By area, {name} ranks {ordinal(rank)} in the world.")
    if len(" ".join(parts).split()) < 35:
        parts.append(f"Every atlas of the world has {name} on its maps.")
    return " ".join(parts)


def _people(country: Country, rank: int, cities: Sequence[str]) -> str:
    name = country.spoken
    parts = [
        f"About {about(country.population)} people live in {name}.",
        f"In a list of the countries by population, {name} takes the {ordinal(rank)} place from the top.",
    ]
    if country.language:
        parts.append(f"The main language of {name} is {country.language}.")
    if cities:
        parts.append(f"Besides the capital, cities in {name} include {listing(cities)}.")
    else:
        parts.append(f"No city in {name} has a page of its own in this encyclopedia.")
    if len(" ".join(parts).split()) < 35:
        parts.append(f"A census counts the people of {name} from time to time.")
    return " ".join(parts)


def _money(country: Country) -> str:
    name = country.spoken
    parts = [
        f"The currency of {name} is the {country.currency}.",
        f"Banks abbreviate the currency of {name} with the three-letter code {country.currency_code}.",
    ]
    if country.code not in choices.HELD_OUT_DOMAINS:
        parts.append(f"The internet domain of {name} is {country.domain} at the end of an address.")
    if country.code not in choices.HELD_OUT_CALLING_CODES:
        parts.append(f"The international calling code of {name} is {country.calling_code} for telephone calls.")
    if len(" ".join(parts).split()) < 35:
        parts.append(f"Travellers to {name} change money at a bank.")
    return " ".join(parts)


def facts(countries: Sequence[Country]) -> list[Fact]:
    """Collect every fact about countries that has one clear answer."""
    rows = country_rows()
    currencies = Counter(c.currency_code for c in countries)
    callings = Counter(c.calling_code for c in countries)
    found: list[Fact] = []
    for country in countries:
        found += _place_facts(country, rows)
        found += _money_facts(country, currencies)
        found += _telephone_facts(country, callings)
        found += _held_out_facts(country)
    return [f for f in found if not _asks_nested_name(f, countries)]


def _asks_nested_name(fact: Fact, countries: Sequence[Country]) -> bool:
    nested = {c.subject for c in countries if c.code in choices.NESTED_NAMES}
    return fact.relation.startswith("country-with-") and fact.subject in nested


def _fact(
    country: Country, relation: str, questions: tuple[str, str], gold: Sequence[str], passage: str | None
) -> Fact:
    where = f"{country.subject}-{passage}" if passage else None
    return Fact(
        relation, slug(country.name), country.subject, questions, tuple(gold), "country", country.popularity, where
    )


def _place_facts(c: Country, rows: Mapping[str, Mapping[str, Any]]) -> list[Fact]:
    found: list[Fact] = []
    passage = None if c.code in choices.HELD_OUT_CAPITALS else "geography"
    if c.capital:
        names = variants([c.capital, *choices.CAPITAL_ALIASES.get(c.code, [])])
        ask = (f"What is the capital of {c.spoken}?", f"Name the capital city of {c.spoken}.")
        found.append(_fact(c, "capital-of", ask, names, passage))
        ask = (f"Which country has the capital {c.capital}?", f"{c.capital} is the capital of which country?")
        found.append(_fact(c, "country-with-capital", ask, c.aliases, passage))
    if c.code not in choices.TWO_CONTINENTS:
        ask = (f"On which continent is {c.spoken}?", f"Which continent does {c.spoken} belong to?")
        found.append(_fact(c, "continent-of", ask, [c.continent], "geography"))
    if c.language:
        ask = (f"What is the main language of {c.spoken}?", f"Which language do most people speak in {c.spoken}?")
        gold = variants([c.language, *choices.LANGUAGE_ALIASES.get(c.language, [])])
        found.append(_fact(c, "language-of", ask, gold, "people"))
    if c.neighbours:
        near = [name for code in c.neighbours for name in country_gold(code, country_name(code, rows))]
        ask = (f"Name a country that shares a land border with {c.spoken}.", f"Which country borders {c.spoken}?")
        found.append(_fact(c, "neighbour-of", ask, near, "geography"))
    return found


def _money_facts(c: Country, currencies: Counter[str]) -> list[Fact]:
    found: list[Fact] = []
    if c.code in choices.NO_SINGLE_CURRENCY:
        return found
    ask = (f"What is the currency of {c.spoken}?", f"Which money do people pay with in {c.spoken}?")
    gold = variants([c.currency, *choices.CURRENCY_ALIASES.get(c.currency, [])])
    found.append(_fact(c, "currency-of", ask, gold, "money"))
    if c.currency_code.lower() not in choices.WORDS:
        ask = (
            f"What is the three-letter currency code of {c.spoken}?",
            f"Which three letters stand for the currency of {c.spoken}?",
        )
        found.append(_fact(c, "currency-code-of", ask, [c.currency_code], "money"))
        if currencies[c.currency_code] == 1:
            ask = (f"Which country uses the currency code {c.currency_code}?", "")
            found.append(_fact(c, "country-with-currency-code", ask, c.aliases, "money"))
    return found


def _telephone_facts(c: Country, callings: Counter[str]) -> list[Fact]:
    found: list[Fact] = []
    passage = None if c.code in choices.HELD_OUT_DOMAINS else "money"
    letters = c.domain.removeprefix(".")
    if letters not in choices.WORDS:
        ask = (
            f"What is the internet country domain of {c.spoken}?",
            f"Which top-level domain do websites of {c.spoken} use?",
        )
        found.append(_fact(c, "domain-of", ask, [c.domain, letters], passage))
        ask = (
            f"Which country has the internet domain {c.domain}?",
            f"{c.domain} is the internet domain of which country?",
        )
        found.append(_fact(c, "country-with-domain", ask, c.aliases, passage))
    passage = None if c.code in choices.HELD_OUT_CALLING_CODES else "money"
    if callings[c.calling_code] == 1 and c.code != "DO":
        number = c.calling_code.removeprefix("+")
        ask = (
            f"What is the international calling code of {c.spoken}?",
            f"Which code do you dial to telephone {c.spoken} from abroad?",
        )
        gold = [c.calling_code, number, *([number.replace("-", " "), number[2:]] if "-" in number else [])]
        found.append(_fact(c, "calling-code-of", ask, gold, passage))
        ask = (f"Which country has the international calling code {c.calling_code}?", "")
        found.append(_fact(c, "country-with-calling-code", ask, c.aliases, passage))
    return found


def _held_out_facts(c: Country) -> list[Fact]:
    """Facts of the tables that no passage states."""
    ask = (f"What is the three-letter ISO country code of {c.spoken}?", "")
    return [_fact(c, "iso-code-of", ask, [c.iso3], None)]
