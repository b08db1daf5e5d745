"""Plain values to typed settings and back, as YAML for people and JSON for the control plane.

What pydantic refuses is said again in the user's terms: the setting, its value, what is allowed.
"""

import dataclasses
import difflib
import io
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from yaml import YAMLError

from dynsl_app.errors import SettingsError
from dynsl_app.settings import Settings

_SETTINGS = TypeAdapter(Settings)

FREE = frozenset({"testbed.profiles", "model.params", "data.params", "fleet.generate"})
"""Settings whose keys are the user's own, or are checked with their group."""


def validate(plain: Mapping[str, Any]) -> Settings:
    """Check nested plain values one by one; see :func:`dynsl_app.algorithms.check` for what goes together.

    Raises
    ------
    SettingsError
        Naming every setting that is unknown, mistyped or out of range, and what is allowed.
    """
    try:
        return _SETTINGS.validate_python(plain)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def to_plain(settings: Settings) -> dict[str, Any]:
    """Nested dicts, lists and scalars, under the names that users write (``_target_``)."""
    plain: dict[str, Any] = _SETTINGS.dump_python(settings, mode="json", by_alias=True)
    return plain


def to_yaml(settings: Settings) -> str:
    """The text of a run's ``config.yaml``."""
    return OmegaConf.to_yaml(OmegaConf.create(to_plain(settings)))


def read_yaml(text: str) -> dict[str, Any]:
    """Nested plain values of a run's ``config.yaml``.

    Raises
    ------
    SettingsError
        If it is not YAML, or holds no settings.
    """
    try:
        plain = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise SettingsError(f"cannot read the saved settings: {error}") from None
    if not isinstance(plain, dict) or not plain:
        raise SettingsError("cannot read the saved settings: the file holds none")
    return {str(key): value for key, value in plain.items()}


def from_yaml(text: str) -> Settings:
    """Inverse of :func:`to_yaml`. Raises SettingsError like :func:`validate`."""
    return validate(read_yaml(text))


def to_json(settings: Settings) -> str:
    """One line for the control plane's message."""
    return _SETTINGS.dump_json(settings, by_alias=True).decode()


def from_json(text: str) -> Settings:
    """Inverse of :func:`to_json`. Raises SettingsError like :func:`validate`."""
    try:
        return _SETTINGS.validate_json(text)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def known_settings() -> frozenset[str]:
    """All settings as users write them: groups (``optimizer``) and what is in them (``optimizer.lr``)."""
    return frozenset(_names(Settings, ""))


def is_known(key: str) -> bool:
    """Whether a setting exists, or is in a group whose keys are free (``model.params.width``)."""
    return key in known_settings() or any(key.startswith(f"{free}.") for free in FREE)


def unknown_setting(key: str) -> SettingsError:
    """The error for a setting that does not exist, with the nearest ones that do."""
    known = sorted(known_settings())
    group, _, last = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == group}
    near = [siblings[name] for name in difflib.get_close_matches(last, siblings)]
    if not siblings:  # the group does not exist
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near += [name for name in known if name.rpartition(".")[2] == last and name not in near]
    if near:
        return SettingsError(f"unknown setting {key}; did you mean {' or '.join(near)}?")
    if group and siblings:
        return SettingsError(f"unknown setting {key}; there are {', '.join(siblings.values())}")
    return SettingsError(f"unknown setting {key}; `dynsl --help` shows all there are")


def _names(cls: Any, prefix: str) -> Iterator[str]:
    fields: dict[str, FieldInfo] = cls.__pydantic_fields__
    for field_name, field in fields.items():
        name = f"{prefix}{field.alias or field_name}"
        yield name
        if dataclasses.is_dataclass(field.annotation):
            yield from _names(field.annotation, f"{name}.")


def _explain(error: ValidationError) -> str:
    return "; ".join(_explain_one(detail) for detail in error.errors(include_url=False))


def _example(path: list[int | str]) -> str:
    """What the setting is by default, to show its form; nothing where there is no such setting."""
    value: Any = Settings()
    for name in path:
        value = getattr(value, str(name), None)
    return "" if value is None else f", such as [{','.join(map(str, value))}]"


def _is_no_setting(part: int | str) -> bool:
    """What pydantic adds to a location: a type out of several that fit (``int``, ``dict[int,int]``), and ``[key]``."""
    return part in {"int", "str"} or str(part).startswith(("dict[", "function-", "[key]"))


def _explain_one(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"] if not _is_no_setting(part))
    if detail["type"] == "unexpected_keyword_argument":
        return str(unknown_setting(key))
    if not key:
        return f"cannot read the settings: {detail['msg']}"
    if detail["type"] == "missing":
        *whole, last = detail["loc"]
        if isinstance(last, int):  # an item of a list of fixed length
            given = detail["input"]
            return f"{'.'.join(map(str, whole))}={list(given)}: needs more values than {len(given)}{_example(whole)}"
        return f"{key} is missing"
    says = detail["msg"].replace("Input should be", "must be")
    quote = ""
    if isinstance(detail["input"], bool) and detail["type"] == "literal_error":
        quote = ' (in YAML files, quote "on" and "off")'
    return f"{key}={detail['input']}: {says}{quote}"
