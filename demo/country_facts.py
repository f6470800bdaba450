"""Editorial choices about countries: facts that the tables lack, spell oddly, or have not updated."""

from __future__ import annotations

# Territories, and places with a disputed status: the encyclopedia has only sovereign states.
NOT_COUNTRIES = frozenset([
    "AI", "AN", "AQ", "AS", "AW", "AX", "BL", "BM", "BQ", "BV", "CC", "CK", "CS", "CW", "CX", "EH", "FK", "FO",
    "GF", "GG", "GI", "GL", "GP", "GS", "GU", "HK", "HM", "IM", "IO", "JE", "KY", "MF", "MO", "MP", "MQ", "MS",
    "NC", "NF", "NU", "PF", "PM", "PN", "PR", "PS", "RE", "SH", "SJ", "SX", "TC", "TF", "TK", "TW", "UM", "VG",
    "VI", "WF", "XK", "YT",
])  # fmt: skip
# Several seats of government, a disputed capital, a capital that is moving, or none.
NO_SINGLE_CAPITAL = frozenset([
    "BO", "GQ", "IL", "LK", "NR", "PW", "SZ", "ZA",
])  # fmt: skip
# Countries on two continents, or placed differently by different atlases.
TWO_CONTINENTS = frozenset([
    "AM", "AZ", "CY", "EG", "GE", "ID", "KZ", "RU", "TL", "TR", "AU", "PA",
])  # fmt: skip
# A currency that changed recently, or two that are legal tender at the same time.
NO_SINGLE_CURRENCY = frozenset([
    "BG", "BT", "HT", "LS", "NA", "PA", "SV", "SZ", "TV", "KI", "NR", "ZW", "LI", "VA",
])  # fmt: skip

CAPITALS = {
    "BR": "Brasília", "CM": "Yaoundé", "CO": "Bogotá", "CR": "San José", "KI": "South Tarawa", "KZ": "Astana",
    "MM": "Naypyidaw", "MV": "Malé", "PY": "Asunción", "ST": "São Tomé", "TG": "Lomé", "US": "Washington, D.C.",
}  # fmt: skip
CAPITAL_ALIASES = {
    "BE": ["Bruxelles"], "CH": ["Berne"], "IN": ["Delhi"], "KI": ["Tarawa"],
    "KZ": ["Nur-Sultan"], "MM": ["Nay Pyi Taw"], "MN": ["Ulan Bator"], "UA": ["Kiev"],
    "US": ["Washington", "Washington DC"], "YE": ["Sana'a"], "IT": ["Roma"], "TD": ["Ndjamena"],
}  # fmt: skip

# Names that are part of a longer one ("Guinea" in "Equatorial Guinea"): never asked for, because the longer
# name would count as right.
NESTED_NAMES = frozenset(["CG", "GN", "SD"])
NAMES = {"NL": "Netherlands", "TL": "Timor-Leste", "VA": "Vatican City", "PS": "Palestinian territories"}
WITH_ARTICLE = frozenset([
    "AE", "BS", "CD", "CF", "CG", "DO", "GB", "GM", "KM", "MH", "MV", "NL", "PH", "PS", "SB", "SC", "US",
])  # fmt: skip
COUNTRY_ALIASES = {
    "AE": ["UAE", "Emirates"], "BA": ["Bosnia"], "CD": ["DR Congo", "DRC", "Congo-Kinshasa"],
    "CG": ["Congo-Brazzaville"], "CI": ["Côte d'Ivoire"], "CN": ["People's Republic of China"],
    "CV": ["Cape Verde"], "CZ": ["Czech Republic"], "GB": ["UK", "Great Britain", "Britain", "England"],
    "IE": ["Republic of Ireland"], "KP": ["DPRK"], "KR": ["Republic of Korea"], "MK": ["Macedonia"],
    "MM": ["Burma"], "NL": ["Holland"], "RU": ["Russian Federation"], "SZ": ["Swaziland"],
    "TL": ["East Timor"], "TR": ["Türkiye"], "US": ["United States of America", "USA", "U.S.", "America"],
    "VA": ["Vatican", "Holy See"], "PS": ["Palestine"], "FM": ["Federated States of Micronesia"],
    "TT": ["Trinidad"], "AG": ["Antigua"], "ST": ["Sao Tome"], "VC": ["Saint Vincent"], "KN": ["Saint Kitts"],
}  # fmt: skip

# Bulgaria joined the euro in 2026, after the table was made.
CURRENCY_CODES = {"BG": "EUR"}
CURRENCIES = {
    "BG": "euro", "BY": "ruble", "CN": "yuan", "KH": "riel", "QA": "riyal", "SA": "riyal", "VE": "bolivar",
    "MN": "tugrik",
}  # fmt: skip
CURRENCY_ALIASES = {
    "yuan": ["renminbi"], "ruble": ["rouble"], "tugrik": ["tögrög", "togrog"], "rial": ["riyal"], "riyal": ["rial"],
    "colon": ["colón"], "cordoba": ["córdoba"], "krone": ["kroner", "crown"], "krona": ["kronor", "crown"],
    "koruna": ["crown"], "shekel": ["sheqel"], "zloty": ["złoty"], "bolivar": ["bolívar"],
}  # fmt: skip

# Borders on leased or overseas territory, which an atlas does not draw between the two countries.
NO_BORDER = frozenset({("CU", "US"), ("US", "CU"), ("ES", "MA"), ("MA", "ES")})

# Only countries with one clear main language, which is the first language in the table.
ONE_LANGUAGE = frozenset([
    "AE", "AL", "AM", "AO", "AR", "AT", "AU", "AZ", "BB", "BD", "BG", "BH", "BR", "BS", "CL", "CN", "CO", "CR",
    "CU", "CZ", "DE", "DK", "DO", "DZ", "EC", "EE", "EG", "ES", "FI", "FR", "GB", "GE", "GR", "GT", "HN", "HR",
    "HU", "IQ", "IR", "IS", "IT", "JM", "JO", "JP", "KG", "KH", "KP", "KR", "KW", "KZ", "LA", "LB", "LI", "LT",
    "LV", "LY", "MA", "MK", "MM", "MN", "MV", "MX", "NI", "NL", "NZ", "OM", "PA", "PE", "PL", "PT", "QA", "RO",
    "RS", "RU", "RW", "SA", "SE", "SI", "SK", "SV", "SY", "TH", "TJ", "TM", "TN", "TR", "UA", "US", "UY", "UZ",
    "VE", "VN", "YE", "SO",
])  # fmt: skip
LANGUAGES = {
    "ar": "Arabic", "az": "Azerbaijani", "bg": "Bulgarian", "bn": "Bengali", "cs": "Czech", "da": "Danish",
    "de": "German", "dv": "Dhivehi", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer",
    "ko": "Korean", "ky": "Kyrgyz", "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian",
    "mn": "Mongolian", "my": "Burmese", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "sk": "Slovak", "sl": "Slovene", "so": "Somali",
    "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "tg": "Tajik", "th": "Thai", "tk": "Turkmen",
    "tr": "Turkish", "uk": "Ukrainian", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
LANGUAGE_ALIASES = {
    "Persian": ["Farsi"], "Chinese": ["Mandarin"], "Khmer": ["Cambodian"], "Slovene": ["Slovenian"],
    "Azerbaijani": ["Azeri"], "Bengali": ["Bangla"], "Dhivehi": ["Divehi", "Maldivian"], "Spanish": ["Castilian"],
    "Kinyarwanda": ["Rwanda-Rundi"], "Lao": ["Laotian"], "Kyrgyz": ["Kirghiz"],
}  # fmt: skip

CONTINENTS = {
    "AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania", "SA": "South America",
}  # fmt: skip

# Codes that are also words: any long answer would contain them and count as right.
WORDS = frozenset([
    "all", "am", "as", "at", "be", "cup", "do", "id", "in", "is", "it", "la", "mad", "me", "my", "no", "pen",
    "so", "sos", "to", "top", "try", "us", "mu", "pa", "ma", "ad", "bb", "ph", "mo",
])  # fmt: skip

# Left out of the passages on purpose, so that some questions have no answer in the passages.
HELD_OUT_CAPITALS = frozenset([
    "BG", "CL", "GH", "HN", "KE", "LV", "MZ", "NP", "PT", "SK", "TJ", "UY", "VN", "YE", "ZM", "BB", "BW", "EE",
    "FJ", "JO",
])  # fmt: skip
HELD_OUT_CALLING_CODES = frozenset([
    "AL", "AR", "BD", "BE", "BO", "BR", "CM", "CU", "DK", "EC", "ET", "FI", "GE", "GR", "HU", "IR", "IQ", "KE",
    "LA", "LK", "MA", "MG", "MT", "NZ", "OM", "PE", "PH", "RO", "SE", "TH",
])  # fmt: skip
HELD_OUT_DOMAINS = frozenset([
    "BA", "BH", "CY", "DZ", "GA", "GM", "HR", "KH", "KZ", "LY", "MN", "MW", "NE", "PY", "RW", "SD", "SN", "SY",
    "UG", "UZ",
])  # fmt: skip
