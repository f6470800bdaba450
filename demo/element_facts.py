"""Editorial choices about elements: undisputed discoveries, name origins, and who is well known.

Names of discoverers are spelled as in their biographies; a year is given only if sources agree on it.
"""

from __future__ import annotations

# symbol: (discoverers as a sentence names them, family names that count as an answer, year or None)
DISCOVERIES: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "H": ("Henry Cavendish", ("Cavendish",), 1766),
    "Li": ("Johan August Arfwedson", ("Arfwedson",), 1817),
    "N": ("Daniel Rutherford", ("Rutherford",), 1772),
    "F": ("Henri Moissan", ("Moissan",), 1886),
    "Ne": ("William Ramsay and Morris Travers", ("Ramsay", "Travers"), 1898),
    "Na": ("Humphry Davy", ("Davy",), 1807),
    "Mg": ("Humphry Davy", ("Davy",), None),
    "Al": ("Hans Christian Ørsted", ("Ørsted", "Oersted", "Orsted"), None),
    "Si": ("Jöns Jacob Berzelius", ("Berzelius",), None),
    "P": ("Hennig Brand", ("Brand",), 1669),
    "Cl": ("Carl Wilhelm Scheele", ("Scheele",), 1774),
    "Ar": ("Lord Rayleigh and William Ramsay", ("Rayleigh", "Ramsay"), 1894),
    "K": ("Humphry Davy", ("Davy",), 1807),
    "Ca": ("Humphry Davy", ("Davy",), 1808),
    "Sc": ("Lars Fredrik Nilson", ("Nilson",), 1879),
    "Ti": ("William Gregor", ("Gregor",), 1791),
    "Cr": ("Louis Nicolas Vauquelin", ("Vauquelin",), None),
    "Mn": ("Johan Gottlieb Gahn", ("Gahn",), 1774),
    "Co": ("Georg Brandt", ("Brandt",), None),
    "Ni": ("Axel Fredrik Cronstedt", ("Cronstedt",), 1751),
    "Ga": ("Paul-Émile Lecoq de Boisbaudran", ("Boisbaudran",), 1875),
    "Ge": ("Clemens Winkler", ("Winkler",), 1886),
    "Se": ("Jöns Jacob Berzelius", ("Berzelius",), None),
    "Kr": ("William Ramsay and Morris Travers", ("Ramsay", "Travers"), 1898),
    "Rb": ("Robert Bunsen and Gustav Kirchhoff", ("Bunsen", "Kirchhoff"), 1861),
    "Y": ("Johan Gadolin", ("Gadolin",), None),
    "Zr": ("Martin Heinrich Klaproth", ("Klaproth",), 1789),
    "Nb": ("Charles Hatchett", ("Hatchett",), 1801),
    "Mo": ("Carl Wilhelm Scheele", ("Scheele",), 1778),
    "Tc": ("Carlo Perrier and Emilio Segrè", ("Perrier", "Segrè", "Segre"), 1937),
    "Ru": ("Karl Ernst Claus", ("Claus", "Klaus"), 1844),
    "Rh": ("William Hyde Wollaston", ("Wollaston",), None),
    "Pd": ("William Hyde Wollaston", ("Wollaston",), None),
    "Cd": ("Friedrich Stromeyer", ("Stromeyer",), 1817),
    "In": ("Ferdinand Reich and Theodor Richter", ("Reich", "Richter"), 1863),
    "Te": ("Franz-Joseph Müller von Reichenstein", ("Müller", "Muller", "Reichenstein"), 1782),
    "I": ("Bernard Courtois", ("Courtois",), 1811),
    "Xe": ("William Ramsay and Morris Travers", ("Ramsay", "Travers"), 1898),
    "Cs": ("Robert Bunsen and Gustav Kirchhoff", ("Bunsen", "Kirchhoff"), 1860),
    "Ba": ("Humphry Davy", ("Davy",), None),
    "La": ("Carl Gustaf Mosander", ("Mosander",), None),
    "Pr": ("Carl Auer von Welsbach", ("Welsbach", "Auer"), 1885),
    "Nd": ("Carl Auer von Welsbach", ("Welsbach", "Auer"), 1885),
    "Sm": ("Paul-Émile Lecoq de Boisbaudran", ("Boisbaudran",), 1879),
    "Eu": ("Eugène-Anatole Demarçay", ("Demarçay", "Demarcay"), None),
    "Gd": ("Jean Charles Galissard de Marignac", ("Marignac",), 1880),
    "Tb": ("Carl Gustaf Mosander", ("Mosander",), 1843),
    "Dy": ("Paul-Émile Lecoq de Boisbaudran", ("Boisbaudran",), 1886),
    "Er": ("Carl Gustaf Mosander", ("Mosander",), 1843),
    "Tm": ("Per Teodor Cleve", ("Cleve",), 1879),
    "Yb": ("Jean Charles Galissard de Marignac", ("Marignac",), 1878),
    "Hf": ("Dirk Coster and George de Hevesy", ("Coster", "Hevesy"), 1923),
    "Ta": ("Anders Gustaf Ekeberg", ("Ekeberg",), 1802),
    "W": ("the brothers Juan José and Fausto Elhuyar", ("Elhuyar",), 1783),
    "Re": ("Walter Noddack, Ida Tacke and Otto Berg", ("Noddack", "Tacke", "Berg"), 1925),
    "Os": ("Smithson Tennant", ("Tennant",), None),
    "Ir": ("Smithson Tennant", ("Tennant",), None),
    "Tl": ("William Crookes", ("Crookes",), 1861),
    "Po": ("Marie and Pierre Curie", ("Curie",), 1898),
    "At": ("Dale Corson, Kenneth MacKenzie and Emilio Segrè", ("Corson", "MacKenzie", "Segrè", "Segre"), 1940),
    "Fr": ("Marguerite Perey", ("Perey",), 1939),
    "Ra": ("Marie and Pierre Curie", ("Curie",), 1898),
    "Ac": ("André-Louis Debierne", ("Debierne",), 1899),
    "Th": ("Jöns Jacob Berzelius", ("Berzelius",), None),
    "U": ("Martin Heinrich Klaproth", ("Klaproth",), 1789),
    "Np": ("Edwin McMillan and Philip Abelson", ("McMillan", "Abelson"), 1940),
}

# symbol: (what the element is named after, further right answers)
NAMED_AFTER: dict[str, tuple[str, tuple[str, ...]]] = {
    "He": ("the Sun", ("Sun", "Helios")), "Sc": ("Scandinavia", ()), "Co": ("a goblin", ("goblin", "kobold")),
    "Ga": ("France", ("Gaul", "Gallia")), "Ge": ("Germany", ()), "Se": ("the Moon", ("Moon", "Selene")),
    "Y": ("Ytterby in Sweden", ("Ytterby",)), "Nb": ("Niobe", ()), "Ru": ("Russia", ("Ruthenia",)),
    "Pd": ("the asteroid Pallas", ("Pallas",)), "Te": ("the Earth", ("Earth", "Tellus")),
    "Ce": ("the dwarf planet Ceres", ("Ceres",)), "Pm": ("Prometheus", ()), "Eu": ("Europe", ()),
    "Ho": ("Stockholm", ("Holmia",)), "Tm": ("Thule", ()), "Lu": ("Paris", ("Lutetia",)),
    "Hf": ("Copenhagen", ("Hafnia",)), "Ta": ("Tantalus", ()), "Re": ("the river Rhine", ("Rhine",)),
    "Ir": ("the rainbow", ("rainbow", "Iris")), "Po": ("Poland", ()), "Fr": ("France", ()), "Th": ("Thor", ()),
    "U": ("the planet Uranus", ("Uranus",)), "Np": ("the planet Neptune", ("Neptune",)), "Pu": ("Pluto", ()),
    "Am": ("the Americas", ("America", "Americas")), "Cm": ("Marie and Pierre Curie", ("Curie",)),
    "Bk": ("Berkeley in California", ("Berkeley",)), "Cf": ("California", ()),
    "Es": ("Albert Einstein", ("Einstein",)), "Fm": ("Enrico Fermi", ("Fermi",)),
    "Md": ("Dmitri Mendeleev", ("Mendeleev",)), "No": ("Alfred Nobel", ("Nobel",)),
    "Lr": ("Ernest Lawrence", ("Lawrence",)), "Rf": ("Ernest Rutherford", ("Rutherford",)),
    "Db": ("Dubna in Russia", ("Dubna",)), "Sg": ("Glenn Seaborg", ("Seaborg",)),
    "Bh": ("Niels Bohr", ("Bohr",)), "Hs": ("the German state of Hesse", ("Hesse", "Hessen")),
    "Mt": ("Lise Meitner", ("Meitner",)), "Ds": ("Darmstadt in Germany", ("Darmstadt",)),
    "Rg": ("Wilhelm Röntgen", ("Röntgen", "Roentgen")), "Cn": ("Nicolaus Copernicus", ("Copernicus",)),
    "Nh": ("Japan", ("Nihon",)), "Fl": ("Georgy Flyorov", ("Flyorov", "Flerov")), "Mc": ("Moscow", ()),
    "Lv": ("Livermore in California", ("Livermore",)), "Ts": ("Tennessee", ()),
    "Og": ("Yuri Oganessian", ("Oganessian",)), "Gd": ("Johan Gadolin", ("Gadolin", "gadolinite")),
    "Yb": ("Ytterby in Sweden", ("Ytterby",)), "Er": ("Ytterby in Sweden", ("Ytterby",)),
    "Tb": ("Ytterby in Sweden", ("Ytterby",)), "V": ("the goddess Vanadis", ("Vanadis", "Freyja", "Freya")),
}  # fmt: skip

ANCIENT = frozenset([
    "C", "S", "Fe", "Cu", "Ag", "Sn", "Sb", "Au", "Hg", "Pb",
])  # fmt: skip
NAME_ALIASES = {"Aluminum": ["Aluminium"], "Cesium": ["Caesium"], "Sulfur": ["Sulphur"], "Tungsten": ["Wolfram"]}
WELL_KNOWN = frozenset([
    "H", "He", "Li", "C", "N", "O", "F", "Ne", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "Ar", "K", "Ca", "Ti",
    "Cr", "Fe", "Co", "Ni", "Cu", "Zn", "Br", "Ag", "Sn", "I", "W", "Pt", "Au", "Hg", "Pb", "Ra", "U", "Pu",
])  # fmt: skip
# Symbols that are also words: any long answer would contain them and count as right.
WORDS = frozenset([
    "Am", "As", "At", "Be", "He", "I", "In", "No", "Es", "Ho",
])  # fmt: skip

# Only families whose members every textbook agrees on; metalloids and poor metals vary.
FAMILIES = {
    "Noble gases": ("noble gases", ("noble gas",)),
    "Alkali metals": ("alkali metals", ("alkali metal", "alkali")),
    "Alkaline earth metals": ("alkaline earth metals", ("alkaline earth metal", "alkaline earth")),
    "Halogens": ("halogens", ("halogen",)),
    "Transition metals": ("transition metals", ("transition metal",)),
    "Lanthanides": ("lanthanides", ("lanthanide", "rare earth", "rare earths")),
    "Actinides": ("actinides", ("actinide",)),
}
# Chemists disagree whether these two head the third column.
NO_GROUP = frozenset({"La", "Ac"})
NO_FAMILY = frozenset([
    "Zn", "Cd", "Hg", "Lu", "Lr", "At", "Ts", "Og", "Cn", "Mt", "Ds", "Rg",
])  # fmt: skip
