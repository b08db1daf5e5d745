"""Values that are lists of rows, as fleets and dynamics are: read from settings or from a YAML file of the user's.

What pydantic refuses is said again in the user's terms: file or option, row, field, what is allowed.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from dynsl_app.errors import SettingsError

T = TypeVar("T")


@dataclass(frozen=True)
class RowReader(Generic[T]):
    """How to read one group of settings.

    Attributes
    ----------
    group
        Its name in settings (``fleet``), and of its folder in conf/.
    adapter
        Makes the value.
    kind
        The value's class.
    parts
        What its fields hold: the class of a list's rows, or of the field itself.
    needs
        Fields of which a file must have one.
    laid_over
        Fields whose settings are laid over a file's; of the others, lists are refused beside a file.
    example
        A file to look at.
    """

    group: str
    adapter: TypeAdapter[T]
    kind: type
    parts: Mapping[str, type]
    needs: tuple[str, ...]
    laid_over: tuple[str, ...]
    example: str

    def resolve(self, plain: Mapping[str, Any]) -> T:
        """The value that settings ask for: listed in them, or in the file that they name.

        Raises
        ------
        SettingsError
            Naming the file, the row, the field and what is allowed.
        """
        file = plain.get("file")
        origin = f"{self.group}={plain.get('name')}"
        if file is None:
            return self._make(plain, origin)
        listed = [
            rows for name, rows in plain.items() if name not in self.laid_over and isinstance(rows, list) and rows
        ]
        if plain.get("name", "none") != "none" or listed:
            raise SettingsError(f"{self.group}.file={file} and {origin} both list {self.needs[0]}; choose one of them")
        return self.read(Path(str(file)), {name: plain[name] for name in self.laid_over if plain.get(name)})

    def read(self, path: Path, over: Mapping[str, Any] | None = None) -> T:
        """A value from a YAML file; its name is the file's own unless it says another.

        Parameters
        ----------
        over
            What is laid over the file's values, mappings key by key.

        Raises
        ------
        SettingsError
            Like :meth:`resolve`.
        """
        path = path.expanduser().absolute()
        origin = f"{self.group}.file={path}"
        try:
            plain = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{origin}: cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(plain, dict) or not any(plain.get(name) for name in self.needs):
            raise SettingsError(f"{origin}: lists no {self.needs[0]}; see {self.example} for what it may hold")
        if "file" in plain:
            raise SettingsError(f"{origin}: a {self.group}'s file cannot name another file; put all into one")
        for name, value in (over or {}).items():
            both = isinstance(value, Mapping) and isinstance(plain.get(name), Mapping)
            plain[name] = {**plain[name], **value} if both else value
        return self._make({"name": path.stem, **plain, "file": str(path)}, origin)

    def _make(self, plain: Mapping[Any, Any], origin: str) -> T:
        try:
            return self.adapter.validate_python(plain)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            says = "; ".join(self._explain(problem, plain) for problem in problems)
            raise SettingsError(f"{origin}: {says}") from None

    def _explain(self, problem: ErrorDetails, plain: Mapping[Any, Any]) -> str:
        row, key = _where(problem["loc"], plain)
        before = f"{row}: " if row else ""
        says = problem["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
        match problem["type"]:
            case "value_error" if isinstance(problem["input"], Mapping):
                return f"{key}: {says}" if key else f"{before}{says}"
            case "missing":
                return f"{before}{key} is missing"
            case "unexpected_keyword_argument":
                kind = self.parts.get(str(problem["loc"][0]), self.kind) if len(problem["loc"]) > 1 else self.kind
                names = [known.name for known in fields(kind)]
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                return f"{before}{key} is unknown; {hint}"
        return f"{before}{key}={problem['input']!r}: {says}" if key else f"{row}={problem['input']!r}: {says}"


def _where(loc: tuple[int | str, ...], plain: Mapping[Any, Any]) -> tuple[str, str]:
    """The row that a problem is in, in words, and the field's name; either may be empty."""
    if len(loc) < 2:
        return "", "".join(map(str, loc))
    group, number, *inner = loc
    if isinstance(number, str):
        return str(group), ".".join(map(str, (number, *inner)))
    return f"{str(group).removesuffix('s')} {number}{_called(plain[group], number)}", ".".join(map(str, inner))


def _called(rows: Any, number: int) -> str:
    row = rows[number] if isinstance(rows, list) else None
    name = row.get("name") if isinstance(row, Mapping) else None
    return f" ({name})" if name else ""
