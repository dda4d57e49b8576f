"""Small disks for a test, which become full or read-only on demand. The test is skipped if mounting is not allowed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """The disk that is mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Leave no space."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 10, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def clear(self) -> None:
        self._filler.unlink()

    def remount(self, how: str) -> None:
        """`how`: `ro` or `rw`. No file may be open for writing."""
        _run("mount", "-o", f"remount,{how}", str(self.folder))


class FailingDisk(Disk):
    """A disk that the kernel makes read-only after an error, until `renewed`."""

    def fail(self) -> None:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        device = next(Path(words[0]).name for words in mounts if words[1] == str(self.folder))
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a test")

    def renewed(self) -> None:
        """No file may be open."""
        _run("umount", str(self.folder))
        _run("mount", "-o", "loop,errors=remount-ro", str(_image_of(self.folder)), str(self.folder))


@contextmanager
def memory(folder: Path) -> Iterator[Disk]:
    """A disk in memory, of 4 MiB."""
    with _mounted(folder, "-t", "tmpfs", "-o", "size=4m,mode=700", "none"):
        yield Disk(folder)


@contextmanager
def failing(folder: Path) -> Iterator[FailingDisk]:
    image = _image_of(folder)
    image.write_bytes(b"")
    with image.open("r+b") as file:
        file.truncate(24 << 20)
    _try("mkfs.ext4", "-q", str(image))
    with _mounted(folder, "-o", "loop,errors=remount-ro", str(image)):
        folder.chmod(0o700)
        yield FailingDisk(folder)


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[None]:
    folder.mkdir()
    _try("mount", *arguments, str(folder))
    try:
        yield
    finally:
        _run("umount", str(folder))


def _image_of(folder: Path) -> Path:
    return folder.with_suffix(".img")


def _try(*command: str) -> None:
    try:
        _run(*command)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing may be mounted here: {getattr(error, 'stderr', error)}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
