"""Files that are either whole or absent, whenever the process or the machine dies."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes ``path``'s place in one step when the block ends without an error."""
    draft = path.with_name(path.name + ".tmp")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors without metadata: equal names and values give equal bytes.

    Neither device, memory layout, order nor shared storage shows in the file.
    """
    # A copy of each one, since safetensors refuses tensors that share memory.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    save_file(plain, path)
