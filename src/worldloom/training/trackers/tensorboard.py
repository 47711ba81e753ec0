"""TensorBoard event files: scalars and hyper-parameters.

The files lie in the run folder itself, so that `tensorboard --logdir runs` names runs by their
folders. Written with TensorBoard's own messages and records, but not with its writer: that one
would import TensorFlow wherever it is installed, and keeps its failures to another thread.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from worldloom.training.trackers.tracker import Point, Tracker, flat, program, relative, require

PATTERN = "events.out.tfevents.*"
_HPARAMS = "plugins.hparams.plugin_data"


class TensorBoard(Tracker):
    """Event files of the run in `folder`; a resumed run adds a file to those that are there."""

    name = "tensorboard"

    def __init__(self, folder: Path):
        super().__init__()
        require(self.name, ["tensorboard"])
        self.folder = Path(folder)
        self._file: BinaryIO | None = None

    def start(self, settings: Mapping[str, Any], tags: Mapping[str, str], step: int) -> None:
        event, plugin = _messages("compat.proto.event"), _messages(_HPARAMS)
        if self._file is None:
            # Read in the order of their names: within a second the number decides.
            number = len(list(self.folder.glob(PATTERN)))
            name = f"{PATTERN[:-1]}{int(time.time()):010d}.{number:04d}.{socket.gethostname()}"
            self._file = (self.folder / name).open("xb")
        self._write(file_version="brain.Event:2")
        # Readers then forget what an earlier session wrote from this step on: it will come again.
        self._write(step=step, session_log=event.SessionLog(status=event.SessionLog.START))
        begun = plugin.SessionStartInfo(start_time_secs=time.time())
        for label, value in flat(settings).items():
            kind = begun.hparams[label]
            if isinstance(value, bool):
                kind.bool_value = value
            elif isinstance(value, (int, float)):
                kind.number_value = value
            else:
                kind.string_value = str(value)
        self._write_session(
            "session_start_info", plugin.HParamsPluginData(session_start_info=begun)
        )
        self._file.flush()

    def log(self, points: Sequence[Point]) -> None:
        summary = _messages("compat.proto.summary").Summary
        by_step: dict[int, list[Any]] = {}
        for label, value, step in points:
            by_step.setdefault(step, []).append(summary.Value(tag=label, simple_value=value))
        for step, values in by_step.items():
            self._write(step=step, summary=summary(value=values))
        self._opened().flush()

    def finish(self, status: str, files: Sequence[Path]) -> None:
        if status == "KILLED":
            return  # readers keep the first end that they see, and this run may go on
        plugin, statuses = _messages(_HPARAMS), _messages("plugins.hparams.api").Status
        code = statuses.Value("STATUS_SUCCESS" if status == "FINISHED" else "STATUS_FAILURE")
        ended = plugin.SessionEndInfo(status=code, end_time_secs=time.time())
        self._write_session("session_end_info", plugin.HParamsPluginData(session_end_info=ended))
        self._opened().flush()

    def look(self) -> list[str]:
        module = "tensorboard.main"
        return [*program("tensorboard", module), "--logdir", relative(self.folder.absolute())]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("no event file is open; start the run first")
        return self._file

    def _write(self, **event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        message = _messages("compat.proto.event").Event(wall_time=time.time(), **event)
        RecordWriter(self._opened()).write(message.SerializeToString())

    def _write_session(self, what: str, data: Any) -> None:
        """A part of what TensorBoard's HPARAMS page knows of a run, as the data of its plugin."""
        messages = _messages("compat.proto.summary")
        metadata = messages.SummaryMetadata()
        metadata.plugin_data.plugin_name = "hparams"
        metadata.plugin_data.content = data.SerializeToString()
        value = messages.Summary.Value(tag=f"_hparams_/{what}", metadata=metadata)
        self._write(summary=messages.Summary(value=[value]))


def _messages(name: str) -> Any:
    """One of TensorBoard's modules of messages, whose classes are made when it is imported."""
    return import_module(f"tensorboard.{name}_pb2")
