"""Weights & Biases: mirrors settings, a point per round and the summary. Never stops a run.

The key comes from ``WANDB_API_KEY``, a ``.env`` file in the working directory, or ``wandb login``. Without
one, or when W&B does not answer, the run is recorded offline in the run folder, for ``wandb sync`` later.
"""

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dotenv import dotenv_values

from dynsl_app.telemetry import strict_json
from dynsl_app.telemetry.events import Event, SinkDegraded

if TYPE_CHECKING:
    import wandb

_ANSWER_S = 20.0
"""How long the start of a run waits for W&B."""
_UPLOAD_S = 60.0
"""How long its end waits for what is not uploaded yet; it stays on disk anyway."""


class WandbSink:
    """One W&B run per run folder; a resumed run goes on in the same one.

    Parameters
    ----------
    folder
        The run folder; W&B keeps its own files in ``wandb/`` inside.
    project
        W&B's project.
    mode
        What the settings ask for; ``WANDB_MODE`` in the environment wins.
    """

    def __init__(self, folder: Path, project: str, mode: Literal["online", "offline"]) -> None:
        self._folder = folder
        self._project = project
        self._mode: Any = os.environ.get("WANDB_MODE") or mode
        self._run: wandb.Run | None = None

    def handle(self, event: Event) -> None:
        """Start the W&B run with the run, log a point per round, and leave the summary at the end."""
        if event["event"] == "run_start":
            self._start(event)
        elif self._run is None:
            return
        elif event["event"] == "round_end":
            self._run.log({name: value for name, value in event.items() if isinstance(value, int | float)})
        elif event["event"] == "run_end":
            self._run.summary.update(_plain({name: value for name, value in event.items() if name != "event"}))

    def close(self) -> None:
        """Finish the W&B run, waiting a limited time for its upload."""
        if self._run is not None:
            self._run.finish()

    def _start(self, event: Event) -> None:
        # Here, so that a missing package is this sink's failure and not the run's.
        import wandb

        trouble = None
        if self._mode == "online":
            key = dotenv_values(".env").get("WANDB_API_KEY")
            if key or wandb.login(prompt=False, verify=False):
                try:
                    self._run = self._init(event, "online", key)
                except (wandb.Error, ValueError) as error:
                    trouble = str(error).splitlines()[0]
                    wandb.teardown()  # or the run's id stays taken in this process
            else:
                trouble = "there is no key (WANDB_API_KEY, .env or `wandb login`)"
        if self._run is None:
            self._run = self._init(event, "offline" if trouble else self._mode, None)
        # Rounds are the axis, not W&B's own step: a resumed run may log again what it had logged before.
        self._run.define_metric("*", step_metric="round")
        if trouble:
            raise SinkDegraded(
                f"W&B is offline: {trouble}; the run goes on and is kept in {self._folder / 'wandb'}, "
                f"send it later with `wandb sync`"
            )

    def _init(self, event: Event, mode: Any, key: str | None) -> "wandb.Run":
        import wandb

        return wandb.init(
            mode=mode,
            project=self._project,
            name=self._folder.name,
            id=self._id(),
            resume="allow",
            reinit="create_new",
            dir=self._folder,
            config=_plain(event["settings"]),
            settings=wandb.Settings(
                api_key=key,
                console="off",
                silent=True,
                save_code=False,
                init_timeout=_ANSWER_S,
                finish_timeout=_UPLOAD_S,
            ),
        )

    def _id(self) -> str:
        """The W&B run's id, kept in the run folder from its first start on."""
        file = self._folder / "wandb" / "id"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        return file.read_text(encoding="utf-8")


def _plain(values: Event) -> Any:
    """As JSON has them: W&B fails on mappings whose keys are numbers."""
    return json.loads(strict_json.dumps(values))
