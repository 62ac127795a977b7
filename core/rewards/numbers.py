r"""Reads a number as people and models write it, and compares two of them.

`025`, `25.0`, `+25`, `$25$`, `\text{25}`, `1,000`, `1\,000`, `2.5e3`, `2.5\times10^{3}`, `1/2`, `\frac{1}{2}`, `$18`,
`50\%`, `18 dollars`, `18\,\text{cm}`, `2 million`, `x = 25`. What stands around a number may be missing on one side;
where both have it, it is the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from core.rewards.answers import fold_text, unwrap

TOLERANCE = Decimal("1e-6")
"""Limits the difference of two decimals, as a share of the label. Integers are exact."""

SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Maps words behind digits to the power of ten that they stand for."""
NO_UNITS = frozenset(SCALES) | frozenset(
    """
    hundred dozen mio mrd half halves third thirds quarter quarters tenths hundredths
    and or not but no nor if is plus minus times more less over squared cubed factorial mod pi tau sqrt sin cos tan ln
    log exp inf infinity
    """.split()
)
"""Lists words behind a number that make another number of it, or no number."""

UNITS = {
    word: unit
    for unit, words in {
        "$": "usd dollar", "€": "eur euro", "£": "pound", "%": "percent", "°": "degree deg circ",
        "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
        "inch": "inche", "ft": "foot feet", "mi": "mile", "kg": "kilogram", "g": "gram", "h": "hour hr",
        "minute": "min", "second": "sec", "square": "sq", "cubic": "cu",
    }.items()
    for word in words.split()
}  # fmt: skip
"""Maps signs and words, without the s of the plural, to one form of the same unit."""
POWERS = {"square": "2", "cubic": "3"}

HAN_SCALES = {"十": 1, "百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8}
"""Maps Chinese words behind digits to powers of ten: 3万 is 30,000."""
HAN_SCALE = "(?:[十百千](?![克米瓦卡帕分])|[万萬亿億])"
HAN_NUMBER = f"(?:{HAN_SCALE}|[半成折])"
"""Matches what makes another number of the digits before it."""
HAN_UNITS = {
    word: unit
    for unit, words in {
        "¥": "元 块 块钱 人民币", "$": "美元", "€": "欧元", "£": "英镑", "%": "个百分点", "°": "度", "°c": "摄氏度",
        "mm": "毫米", "cm": "厘米 公分", "m": "米", "km": "千米 公里", "g": "克", "kg": "千克 公斤", "ml": "毫升",
        "l": "升", "m 2": "平方米", "cm 2": "平方厘米", "m 3": "立方米", "cm 3": "立方厘米", "m/": "米/秒",
        "km/h": "千米/时 千米/小时 公里/时 公里/小时", "second": "秒 秒钟", "minute": "分钟", "h": "小时 个小时",
        "day": "天", "week": "周", "month": "个月", "year": "年",
    }.items()
    for word in words.split()
} | {one: one for one in "分角吨斤岁个只人名位本次种张条件辆棵支页倍盒袋箱瓶杯朵把头颗粒根组层家户台题"}  # fmt: skip
"""Maps what may stand right behind digits in Chinese, units and counters, to one form of the same unit; `m/` was m/s
before it lost the s of a plural."""


@dataclass(frozen=True, slots=True)
class Number:
    """Holds a value, its unit and the name that it is given to, such as `x` in `x = 25`; "" where there is none."""

    value: Decimal
    unit: str = ""
    name: str = ""


def parse_number(text: str, *, counted: bool = True) -> Number | None:
    """Return the number that `text` is, or None; with `counted`, 25个苹果 is 25 as `25 apples` is.

    It takes time linear in the text, whatever a model wrote.
    """
    name, equals, right = unwrap(fold_text(text)).rpartition("=")
    if equals and not _NAME.fullmatch(name):
        return None
    right = _HAN_SCALE.sub(lambda scale: f"e{sum(HAN_SCALES[each] for each in scale[2])}{scale[1]}", unwrap(right))
    plain = _SCALE.sub(lambda scale: f"e{SCALES[(scale[1] or scale[2]).lower()]}", _SEPARATOR.sub(",", right))
    match = _NUMBER.fullmatch(plain) or (_NUMBER.fullmatch(_COUNTED.sub("", plain)) if counted else None)
    unit = None if match is None else _read_unit(match["currency"], match["unit"])
    if match is None or unit is None:
        return None
    value = _read_value(match)
    if match["sign"] == "-" or match["sign_behind"] == "-":
        value = value.copy_negate()
    return Number(value or Decimal(0), unit, name.replace(" ", "")) if value.is_finite() else None


def parse_label(text: str) -> Number | None:
    """Return the number that a label is. Unlike in an answer, `4x + 3y = 6` is not 6 there, nor 3个火枪手 3."""
    number = parse_number(text, counted=False)
    return None if number is None or _EQUATION.search(number.name) else number


def parse_integer(text: str) -> str | None:
    """Return the integer that `text` writes, as digits without leading zeros and maybe a minus; None if it is none."""
    number = parse_number(text)
    return f"{number.value:.0f}" if number is not None and _is_integer(number.value) else None


def is_same_number(answer: Number, label: Number) -> bool:
    """Return whether both are the same number; where both have a unit or a name, it must be the same, too."""
    if any(own and other and own != other for own, other in ((answer.unit, label.unit), (answer.name, label.name))):
        return False
    values = [answer.value]
    if (answer.unit == "%") != (label.unit == "%"):
        values.append(answer.value.scaleb(-2 if answer.unit else 2))
    if label.value in values or _is_integer(label.value):
        return label.value in values
    return any(abs(value - label.value) <= TOLERANCE * abs(label.value) for value in values)


def _is_integer(value: Decimal) -> bool:
    return value == value.to_integral_value()


_NAME = re.compile(r"[^=,;<>!≠≤≥\n]{0,60}")
_CURRENCY = r"(?:US)?\\?[$€£¥]|USD|EUR"
_TEXT = r"\\(?:textrm|text|mathrm|mbox|operatorname|rm)"
_PART = r"(?:\{ ?[0-9]{1,20} ?\}|[0-9])"
_SQUARED = r"(?: ?\^ ?\{?[23]\}?)?"
# White space is one space: see unwrap. A word behind a digit is no unit, but for the short ones that are listed.
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?P<currency>{_CURRENCY})? ?(?P<sign_behind>[+-]?) ?"
    rf"(?:(?P<fraction>[0-9]{{1,20}} ?/ ?[0-9]{{1,20}}|\\[dt]?frac ?{_PART} ?{_PART})|"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<e>[+-]?[0-9]{1,4})|"
    r" ?(?:\\times|\\cdot|×|·|\*|x) ?10 ?\^ ?(?:\{ ?(?P<braced>[+-]?[0-9]{1,4}) ?\}|(?P<power>[+-]?[0-9]{1,4})))?)"
    r"(?:[ ~]|\\(?:[,;:! ]|quad|\Z))*"
    rf"(?P<unit>\\?%|(?:°|\^? ?\{{? ?\\(?:circ|degree) ?\}}?)(?: ?(?:{_TEXT} ?\{{)?[CF]\}}?)?|{_CURRENCY}|st|nd|rd|th"
    rf"|(?:[cmk]m|[km]g|m[lL]|ft|lb|oz|deg){_SQUARED}"
    rf"|(?<![0-9.])(?:k?m/[sh]|[mgshlLNJWVK]|[A-Za-z]{{2,}}(?:[ /]+[A-Za-z]+){{0,3}}){_SQUARED}"
    rf"|{'|'.join(sorted(HAN_UNITS, key=len, reverse=True))}|{_TEXT} ?\{{[^{{}}0-9]*\}}{_SQUARED})?"
)
_WORDS = f"({'|'.join(SCALES)})s?"
_SCALE = re.compile(rf"(?<=[0-9])(?:[ ~]|\\[,;:! ])*(?:\\text ?\{{ ?{_WORDS} ?\}}|{_WORDS}\b)", re.IGNORECASE)
_HAN_SCALE = re.compile(
    rf"(?<=[0-9])(?:[ ~]|\\[,;:! ])*((?:{_TEXT} ?\{{)?)([十百千]?[万萬亿億]+|[十百千](?![克米瓦卡帕分]))(?![0-9])"
)
_COUNTED = re.compile(
    r"(?<=[0-9][个只人名位本张条件辆棵支盒袋朵颗])(?:(?![一二两三四五六七八九十零百千万萬亿億半成折多余几数或和加减不未])"
    r"[\u4e00-\u9fff]){1,4}(?<![月时的上下右内外])\Z"
)
"""Matches what is counted, as in 25个苹果. It matches neither 3个月, another unit, nor 3个以上, 3个不到 or 3个十."""
_OPERATOR = r"(?:[+*/^]|-(?![a-z]{2})|\\cdot|\\times)"
_EQUATION = re.compile(rf"[^\W\d].*{_OPERATOR}|{_OPERATOR}.*[^\W\d]")
_SEPARATOR = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,)(?=[0-9]{3})")


def _read_value(match: re.Match[str]) -> Decimal:
    """Return the value without its sign; NaN for a fraction over 0."""
    if match["digits"]:
        exponent = match["e"] or match["power"] or match["braced"] or "0"
        return Decimal(f"{match['digits'].replace(',', '')}e{exponent}")
    parts = re.findall("[0-9]+", match["fraction"])
    top, bottom = map(Decimal, parts if len(parts) == 2 else parts[0])  # one part: \\frac12
    return top / bottom if bottom else Decimal("nan")


def _read_unit(before: str | None, behind: str | None) -> str | None:
    """Return a unit in its one form, or None for words that are no unit."""
    words = re.sub(rf"{_TEXT}|[\\{{}}^]", " ", behind or "").casefold().split()
    others = [word for word in words if re.search(HAN_NUMBER, word) and word not in HAN_UNITS]
    if others or (words != ["times"] and not NO_UNITS.isdisjoint(words)):
        return None
    words = [before.replace("\\", "").removeprefix("US$") or "$"] if before else words
    named = [HAN_UNITS.get(word) or UNITS.get(word, word) for word in (word.removesuffix("s") for word in words)]
    if len(named) > 1 and named[0] in POWERS:
        named = [*named[1:], POWERS[named[0]]]
    return " ".join(named)
