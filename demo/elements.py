"""Write up to three passages about every chemical element, and collect the facts that can be asked about it."""

from __future__ import annotations

from collections.abc import Sequence

from demo import element_facts as choices
from demo.tables import ElementRow, element_rows
from demo.world import Fact, Passage, Popularity, slug, variants

ZERO_CELSIUS = 273.15
ROOM = 293.15


def load_elements() -> list[ElementRow]:
    """Read the elements in the order of the periodic table."""
    return element_rows()


def element_subject(row: ElementRow) -> str:
    """The stem of the identifiers of its passages."""
    return f"element-{slug(row.name)}"


def element_popularity(row: ElementRow) -> Popularity:
    """Whether many people know the element."""
    if row.symbol in choices.WELL_KNOWN:
        return "head"
    return "tail" if row.number > 92 or 57 <= row.number <= 72 else "torso"


def element_names(row: ElementRow) -> tuple[str, ...]:
    """Every name that counts as naming this element."""
    return variants([row.name.lower(), *(name.lower() for name in choices.NAME_ALIASES.get(row.name, []))])


def _family(row: ElementRow) -> str | None:
    known = row.series in choices.FAMILIES and row.symbol not in choices.NO_FAMILY
    return choices.FAMILIES[row.series][0] if known else None


def _state(row: ElementRow) -> str | None:
    """Derive the state at room temperature from the melting and boiling points."""
    if row.melting is None or row.boiling is None:
        return None
    return "solid" if row.melting > ROOM else "gas" if row.boiling < ROOM else "liquid"


def _weight(row: ElementRow) -> str | None:
    """Return the standard atomic weight; radioactive elements without stable isotopes have none."""
    if row.radioactive and row.symbol not in {"Th", "U", "Pa"}:
        return None
    return f"{row.weight:.3f}".rstrip("0").rstrip(".")


def _celsius(kelvin: float) -> str:
    return f"{round(kelvin - ZERO_CELSIUS):d}"


def _numbers(number: str) -> list[str]:
    """Accept a number with and without its comma."""
    return list(dict.fromkeys([number, f"{int(number):,}"]))


def _roundings(exact: str, value: float) -> list[str]:
    """Accept fewer decimals, but not ".0": comparing answers drops the point, and 1.0 would count as 10."""
    return [exact, *(r for r in (f"{value:.2f}", f"{value:.1f}") if not r.endswith("0") and r != exact)]


def passages(elements: Sequence[ElementRow]) -> list[Passage]:
    """Write the place in the table, the properties and the discovery of each element, as far as known."""
    found: list[Passage] = []
    for index, row in enumerate(elements):
        before = elements[index - 1].name.lower() if index else None
        after = elements[index + 1].name.lower() if index + 1 < len(elements) else None
        texts = {
            "table": ("place in the periodic table", _table(row, before, after)),
            "properties": ("properties", _properties(row)),
            "discovery": ("discovery and name", _discovery(row)),
        }
        for aspect, (title, text) in texts.items():
            if text:
                found.append(Passage(f"{element_subject(row)}-{aspect}", f"{row.name}: {title}", text, "element"))
    return found


def _table(row: ElementRow, before: str | None, after: str | None) -> str:
    name = row.name.lower()
    place = f"period {row.period} and group {row.group:.0f}" if row.group else f"period {row.period}"
    parts = [
        f"{row.name} is a chemical element with the symbol {row.symbol}.",
        f"The atomic number of {name} is {row.number}.",
        f"In the periodic table, {name} stands in {place}.",
    ]
    family = _family(row)
    if family:
        parts.append(f"{row.name} belongs to the family of the {family}.")
    if before and after:
        parts.append(f"{row.name} comes right after {before} and right before {after}.")
    elif after:
        parts.append(f"{row.name} comes first of all, right before {after}.")
    else:
        parts.append(f"{row.name} comes last of all, right after {before}.")
    return " ".join(parts)


def _properties(row: ElementRow) -> str | None:
    name = row.name.lower()
    weight, state = _weight(row), _state(row)
    if weight is None and row.melting is None:
        return None
    parts: list[str] = []
    if weight:
        parts.append(f"The atomic weight of {name} is about {weight}.")
    if state:
        parts.append(f"At room temperature and normal pressure, {name} is a {state}.")
    if row.melting is not None:
        parts.append(f"{row.name} melts at about {_celsius(row.melting)} degrees Celsius.")
    if row.boiling is not None and state:
        parts.append(f"{row.name} boils at about {_celsius(row.boiling)} degrees Celsius.")
    if row.radioactive:
        parts.append(f"Every form of {name} is radioactive, so atoms of {name} decay with time.")
    else:
        parts.append(f"Ordinary {name} is not counted among the radioactive elements.")
    if len(" ".join(parts).split()) < 35:
        parts.append(f"Laboratories measure such values on a sample of {name} that is as pure as they can make it.")
    return " ".join(parts)


def _discovery(row: ElementRow) -> str | None:
    name = row.name.lower()
    found = choices.DISCOVERIES.get(row.symbol)
    origin = choices.NAMED_AFTER.get(row.symbol)
    parts: list[str] = []
    if found:
        who, _, year = found
        parts.append(f"The discovery of {name} is credited to {who}.")
        if year:
            parts.append(f"The year in which {name} was discovered is {year}.")
    elif row.symbol in choices.ANCIENT:
        parts.append(f"People have known {name} since ancient times, so nobody is credited with its discovery.")
    if origin:
        parts.append(f"The element {name} is named after {origin[0]}.")
    if not parts:
        return None
    parts.append(f"Chemists write {row.symbol} as the short form of {name} in formulas and on labels.")
    if len(" ".join(parts).split()) < 35:
        parts.append(f"Books on the history of chemistry tell how {name} was found and how {name} got its name.")
    return " ".join(parts)


def facts(elements: Sequence[ElementRow]) -> list[Fact]:
    """Collect every fact about elements that has one clear answer."""
    found: list[Fact] = []
    for index, row in enumerate(elements):
        after = elements[index + 1] if index + 1 < len(elements) else None
        found += _table_facts(row, after)
        found += _property_facts(row)
        found += _history_facts(row)
        found += _held_out_facts(row)
    return found


def _fact(row: ElementRow, relation: str, questions: tuple[str, str], gold: Sequence[str], passage: str | None) -> Fact:
    subject, known = element_subject(row), element_popularity(row)
    where = f"{subject}-{passage}" if passage else None
    return Fact(relation, slug(row.name), subject, questions, tuple(gold), "element", known, where)


def _table_facts(row: ElementRow, after: ElementRow | None) -> list[Fact]:
    name = row.name.lower()
    found: list[Fact] = []
    if row.symbol not in choices.WORDS:
        ask = (f"What is the chemical symbol of {name}?", f"Which symbol stands for the element {name}?")
        found.append(_fact(row, "symbol-of", ask, [row.symbol], "table"))
    ask = (f"Which element has the symbol {row.symbol}?", f"{row.symbol} is the symbol of which chemical element?")
    found.append(_fact(row, "element-with-symbol", ask, element_names(row), "table"))
    ask = (f"What is the atomic number of {name}?", f"How many protons does an atom of {name} have?")
    found.append(_fact(row, "atomic-number-of", ask, [str(row.number)], "table"))
    ask = (f"Which element has the atomic number {row.number}?", f"Name the element with atomic number {row.number}.")
    found.append(_fact(row, "element-with-number", ask, element_names(row), "table"))
    if row.group and row.symbol not in choices.NO_GROUP:
        ask = (f"In which group of the periodic table is {name}?", f"What is the group number of {name}?")
        found.append(_fact(row, "group-of", ask, [f"{row.group:.0f}"], "table"))
    ask = (f"In which period of the periodic table is {name}?", f"What is the period number of {name}?")
    found.append(_fact(row, "period-of", ask, [str(row.period)], "table"))
    if after:
        ask = (f"Which element comes right after {name} in the periodic table?", "")
        found.append(_fact(row, "element-after", ask, element_names(after), "table"))
    family = _family(row)
    if family:
        ask = (f"Which family of elements does {name} belong to?", f"What kind of element is {name}?")
        found.append(_fact(row, "family-of", ask, [family, *choices.FAMILIES[row.series][1]], "table"))
    return found


def _property_facts(row: ElementRow) -> list[Fact]:
    name = row.name.lower()
    found: list[Fact] = []
    weight, state = _weight(row), _state(row)
    if weight:
        ask = (f"What is the atomic weight of {name}?", f"What is the atomic mass of {name}?")
        found.append(_fact(row, "atomic-weight-of", ask, _roundings(weight, row.weight), "properties"))
    if state:
        ask = (f"What is the physical state of {name} at room temperature?", "")
        gold = {"gas": ["gas", "gaseous"], "liquid": ["liquid"], "solid": ["solid"]}[state]
        found.append(_fact(row, "state-of", ask, gold, "properties"))
        if row.melting is not None and row.melting > ROOM:
            ask = (f"At how many degrees Celsius does {name} melt?", "")
            found.append(_fact(row, "melting-point-of", ask, _numbers(_celsius(row.melting)), "properties"))
    return found


def _history_facts(row: ElementRow) -> list[Fact]:
    name = row.name.lower()
    found: list[Fact] = []
    discovery = choices.DISCOVERIES.get(row.symbol)
    if discovery:
        who, families, year = discovery
        ask = (f"Who discovered the element {name}?", f"Who is credited with the discovery of {name}?")
        found.append(
            _fact(row, "discoverer-of", ask, variants([who.removeprefix("the brothers "), *families]), "discovery")
        )
        if year:
            ask = (f"In which year was {name} discovered?", "")
            found.append(_fact(row, "discovery-year-of", ask, [str(year)], "discovery"))
    origin = choices.NAMED_AFTER.get(row.symbol)
    if origin:
        ask = (f"What is the element {name} named after?", f"Where does the name of the element {name} come from?")
        found.append(_fact(row, "named-after", ask, variants([origin[0], *origin[1]]), "discovery"))
    return found


def _held_out_facts(row: ElementRow) -> list[Fact]:
    """Facts of the tables that no passage states."""
    name = row.name.lower()
    found: list[Fact] = []
    if row.density and row.density > 0.1 and row.density % 1 and row.number <= 94:
        ask = (f"What is the density of {name} in grams per cubic centimetre?", "")
        found.append(_fact(row, "density-of", ask, _roundings(f"{row.density:g}", row.density), None))
    if row.electronegativity and row.electronegativity % 1:
        ask = (f"What is the electronegativity of {name} on the Pauling scale?", "")
        value = row.electronegativity
        found.append(_fact(row, "electronegativity-of", ask, _roundings(f"{value:g}", value), None))
    return found
