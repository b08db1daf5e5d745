"""Change one value of a decoded INSTANCE.json before it is read: ``clients.3.up_Bps=1e6``."""

import json
from typing import Any

from dynsl_app.errors import SettingsError


def assign(data: Any, change: str) -> None:
    """Apply ``PATH=VALUE`` in place.

    PATH is keys and list positions (from 0) joined by dots; a client goes by position or by name. VALUE is JSON, or
    else a text. What the value may be is checked when the instance is read.

    Raises
    ------
    SettingsError
        If the change has another form or the path leads nowhere.
    """
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise SettingsError(f"--set {change}: expected PATH=VALUE, such as clients.3.up_Bps=1e6")
    place, rest = data, path
    while True:
        key, rest = _step(place, rest, change)
        if not rest:
            break
        place = place[key]
    try:
        place[key] = json.loads(text)
    except json.JSONDecodeError:
        place[key] = text


def _step(place: Any, path: str, change: str) -> tuple[str | int, str]:
    """The next key of a path, and what is left of it."""
    head, _, rest = path.partition(".")
    if isinstance(place, dict):
        if rest and head not in place:
            raise SettingsError(f"--set {change}: there is no {head!r} here; the keys are {', '.join(place)}")
        return head, rest
    if not isinstance(place, list):
        raise SettingsError(f"--set {change}: nothing lies below a single value; end the path before {path!r}")
    if head.isdecimal() and int(head) < len(place):
        return int(head), rest
    # A name may itself hold dots, so names are compared with the whole rest; the longest wins.
    entries = [(i, entry.get("name")) for i, entry in enumerate(place) if isinstance(entry, dict)]
    names = {name: i for i, name in entries if isinstance(name, str)}
    for name in sorted(names, key=len, reverse=True):
        if path == name or path.startswith(f"{name}."):
            return names[name], path[len(name) + 1 :]
    called = f", or a name: {', '.join(list(names)[:8])}{', …' if len(names) > 8 else ''}" if names else ""
    raise SettingsError(f"--set {change}: {head!r} is not in this list; give a position 0..{len(place) - 1}{called}")
