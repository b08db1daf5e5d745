"""Checkpoints: everything a run needs to go on after a round, safe against death at any moment.

``checkpoint/round-000003/`` holds ``model.safetensors`` (the merged model), ``states.safetensors`` (named groups of
tensors, such as optimizer state) and ``checkpoint.json``. A folder takes that name only when all of it is on
disk. The last two are kept.
"""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dynsl_app.errors import SettingsError
from dynsl_app.server.durable import save_tensors, sync

_KEPT = 2
_NAME = re.compile(r"round-\d{6}")
_MODEL = "model.safetensors"
_STATES = "states.safetensors"
_META = "checkpoint.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes
    ----------
    round
        The last completed round.
    weights
        The merged model under the plain model's names.
    states
        Groups of tensors by name, such as ``client/3/optimizer``; a group may be empty.
    meta
        Anything else, as JSON has it: keys of mappings are strings, sequences are lists.
    """

    round: int
    weights: Mapping[str, Tensor]
    states: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under ``folder`` (a run's ``checkpoint/``) and drop those before the last two.

    Returns
    -------
    Path
        The checkpoint's own folder.
    """
    target = folder / f"round-{checkpoint.round:06d}"
    draft = target.with_name(target.name + ".tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    groups = list(checkpoint.states)
    save_tensors(draft / _MODEL, checkpoint.weights)
    # Group names may hold any character, so tensors carry the group's number instead.
    save_tensors(
        draft / _STATES,
        {f"{k}/{name}": value for k, group in enumerate(groups) for name, value in checkpoint.states[group].items()},
    )
    (draft / _META).write_text(
        json.dumps({"round": checkpoint.round, "groups": groups, "meta": checkpoint.meta}), encoding="utf-8"
    )
    for written in (draft / _MODEL, draft / _STATES, draft / _META, draft):
        sync(written)
    shutil.rmtree(target, ignore_errors=True)  # left when a run goes on from an earlier round
    draft.rename(target)
    sync(folder)
    whole = _newest_first(folder)
    # Rounds after this one are from before a resume that started earlier.
    kept = [path for path in whole if path.name <= target.name][:_KEPT]
    for path in [*whole, *folder.glob("round-*.tmp")]:
        if path not in kept:
            shutil.rmtree(path)
    return target


def load(folder: Path) -> Checkpoint:
    """The newest whole checkpoint under ``folder`` (a run's ``checkpoint/``), with its tensors on the CPU.

    Raises
    ------
    SettingsError
        If there is none.
    """
    for candidate in _newest_first(folder):
        try:
            return _read(candidate)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            _log.warning("%s is damaged (%s); trying the one before", candidate, error)
    raise SettingsError(
        f"nothing to resume in {folder.parent}: there is no whole checkpoint in {folder}; resume=<run folder> "
        f"takes a run that completed at least one round"
    )


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("round-*") if _NAME.fullmatch(path.name)), reverse=True)


def _read(path: Path) -> Checkpoint:
    saved = json.loads((path / _META).read_text(encoding="utf-8"))
    states: dict[str, dict[str, Tensor]] = {group: {} for group in saved["groups"]}
    for key, tensor in load_file(path / _STATES).items():
        number, name = key.split("/", 1)
        states[saved["groups"][int(number)]][name] = tensor
    return Checkpoint(saved["round"], load_file(path / _MODEL), states, saved["meta"])
