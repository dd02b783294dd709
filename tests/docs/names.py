"""Which names the code may not have, and which words the glossary says.

A name says what a thing is, in the words of the field. Checked are modules, classes and functions, and of
variables, attributes and parameters whether they have a banned word. A public class has a name of its own in
the whole package, and so has a public function; none is another one's with a letter more. A module that a
docstring, a page or the table of options names is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

from airflow_provider_jmsjca.core.options import OPTIONS

PACKAGE = "airflow_provider_jmsjca"
BANNED = frozenset(
    {
        "fate",
        "fates",
        "handout",
        "helper",
        "helpers",
        "likeness",
        "manager",
        "mood",
        "patience",
        "patient",
        "patiently",
        "stint",
        "stints",
        "utils",
    }
)
"""Words that are moods, riddles or say nothing; not allowed anywhere in a name."""
BANNED_WHOLE = frozenset({"common", "ends", "hand_outs", "levels", "misc", "things"})
"""Not allowed as a whole name: within another they say something."""
ACCEPTED_PAIRS = frozenset(
    {
        ("destination", "destinations"),  # the value, and modules that are about many of them
        ("pool", "spool"),  # both are the field's words
        ("table", "tables"),  # the table of options; tables that Spark writes
    }
)
ACCEPTED_WITH_ONE_LETTER_MORE = frozenset(
    {
        ("Deliver", "Delivery"),  # a decision; what it leads to
        ("ItemType", "ItemTypes"),  # one; those of a message, by key
        ("PropertyType", "PropertyTypes"),  # the same of properties
        ("Stage", "Staged"),  # a decision; a file that isn't sealed yet
    }
)
"""Public names of two modules of which one has a letter more than the other at its end."""
ACCEPTED_FUNCTIONS = frozenset(
    {
        "encode",  # a frame; modified UTF-8, which is called by its module
        "list_command",  # commands of a group, and the next
        "main",  # scripts
        "names_in",  # a folder; a selector
        "number",  # an overload
        "parse",  # XML; selectors
        "register",  # dialects; data sources
        "send",  # tasks send; the transport sends
        "show_command",
        "shown",  # a value of an option; a spelling in an error
        "upgrade",  # migrations
    }
)
"""Public functions of which there are several; those of one port in `spool/files` are accepted too."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
# Spark's own names begin with `spark` too.
_REFERENCE = re.compile(
    r"`((?:core|engine|hooks|operators|sensors|spool|store|transports|triggers)(?:\.\w+)+)`"
)
_ENTRY = re.compile(r"^\| (?P<word>[^|]+?) \|", re.MULTILINE)


def name_faults(root: Path) -> list[str]:
    """Return what is wrong with the names below a repository's root, and with its glossary."""
    folder = root / PACKAGE
    files = sorted(folder.rglob("*.py"))
    faults: list[str] = []
    text: list[str] = []
    classes: dict[str, list[str]] = {}
    functions: dict[str, list[str]] = {}
    for file in files:
        source = file.read_text(encoding="utf-8")
        text.append(source.lower())
        path = file.relative_to(folder).as_posix()
        faults += [
            f"{path}: {name!r} is no name for this ({' and '.join(sorted(found))}); see tests/docs/names.py"
            for name in (file.stem, *_defined(source))
            if (found := banned_in(name))
        ]
        faults += [
            f"{path}: {name!r} is no name for this ({' and '.join(sorted(found))}); see tests/docs/names.py"
            for name in sorted(set(_assigned(source)))
            if (found := _words_of(name) & BANNED)
        ]
        for name in _classes(source):
            classes.setdefault(name, []).append(path)
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                functions.setdefault(node.name, []).append(path)
    faults += [
        f"{' and '.join(paths)}: each defines {name!r}: one name doesn't mean two things"
        for name, paths in classes.items()
        if len(paths) > 1
    ]
    faults += [
        f"{' and '.join(paths)}: each defines {name!r}(): one name doesn't mean two things"
        for name, paths in functions.items()
        if name not in ACCEPTED_FUNCTIONS and len({path.split("/files/")[0] for path in paths}) > 1
    ]
    stems = sorted({file.stem for file in files})
    faults += [
        f"modules {one!r} and {other!r} differ by one letter: who reads one thinks of the other"
        for number, one in enumerate(stems)
        for other in stems[number + 1 :]
        if (one, other) not in ACCEPTED_PAIRS and differ_by_one(one, other)
    ]
    faults += [
        f"{names[name][0]} and {names[name + end][0]}: {name!r} and {name + end!r} differ by one letter"
        for names in (classes, functions)
        for name in sorted(names)
        for end in ascii_lowercase
        if name + end in names
        and names[name] != names[name + end]
        and (name, name + end) not in ACCEPTED_WITH_ONE_LETTER_MORE
    ]
    glossary = (root / "docs" / "glossary.md").read_text(encoding="utf-8")
    code = re.sub(r"[\s_-]+", " ", " ".join(text))
    faults += [
        f"docs/glossary.md: {word!r} is a word that the code doesn't use"
        for word in glossary_words(glossary)
        if not any(form.replace("-", " ") in code for form in word.lower().split(" / "))
    ]
    return faults


def reference_faults(root: Path) -> list[str]:
    """Return which modules are named, in backticks or by an option that acts there, and aren't there."""
    folder = root / PACKAGE
    faults = [
        f"core/options: {option.name} acts in {place!r}, which is no module"
        for option in OPTIONS
        for place in filter(None, option.acts.split(", "))
        if _found(folder, place) != ""
    ]
    for file in (*sorted(folder.rglob("*.py")), *sorted((root / "docs").rglob("*.md"))):
        faults += [
            f"{file.relative_to(root).as_posix()}: nothing is called `{name}`"
            for name in sorted(set(_REFERENCE.findall(file.read_text(encoding="utf-8"))))
            if not _is_there(folder, name)
        ]
    return faults


def _found(folder: Path, name: str) -> str:
    """Return what is left of a dotted name behind the module that it begins with."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = folder.joinpath(*parts[:end])
        if place.is_dir() or place.with_suffix(".py").is_file():
            return ".".join(parts[end:])
    return name


def _is_there(folder: Path, name: str) -> bool:
    left = _found(folder, name)
    if not left:
        return True
    module = folder.joinpath(*name.removesuffix(left).strip(".").split("."))
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return re.search(rf"\b{left.partition('.')[0]}\b", file.read_text(encoding="utf-8")) is not None


def banned_in(name: str) -> set[str]:
    """Return the banned words in a name."""
    return (_words_of(name) & BANNED) | ({name.lower().strip("_")} & BANNED_WHOLE)


def _words_of(name: str) -> set[str]:
    return {each.lower() for each in _WORDS.findall(name)}


def differ_by_one(one: str, other: str) -> bool:
    """Say whether a letter added, dropped or changed makes one name of the other."""
    short, long = sorted((one, other), key=len)
    if one == other or len(long) - len(short) > 1:
        return False
    same = next((at for at, letter in enumerate(short) if letter != long[at]), len(short))
    return short[same:] == long[same + 1 :] or short[same + 1 :] == long[same + 1 :]


def glossary_words(page: str) -> list[str]:
    """Return the words that a glossary explains."""
    return [found for found in _ENTRY.findall(page) if found != "word" and set(found) - set("- ")]


def _defined(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


def _assigned(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def _classes(source: str) -> Iterator[str]:
    """Yield the public names of classes and of types that a module defines."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if len(name) > 1 and name.istitle():
                pass
            case _:
                continue
        if not name.startswith("_"):
            yield name
