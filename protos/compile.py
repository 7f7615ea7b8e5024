"""Generates the protobuf modules and stubs next to the .proto files; `--check` only compares.

The generator has its own virtual environment: its pinned, older release makes modules that load on every
protobuf runtime that the project accepts, but needs an older runtime for itself.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOOLS = ("grpcio-tools==1.71.2", "mypy-protobuf==3.6.0", "setuptools<81")
SOURCES = ("model.proto", "fleet.proto", "operator.proto")


def toolchain(where: Path) -> Path:
    """Return the interpreter of the generator's environment, which is created on first use."""
    python = where / "bin" / "python"
    stamp = where / "tools.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        venv.create(where, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return python


def generate(target: Path, tools: Path) -> list[Path]:
    """Write the generated files below `target` and return those that belong next to the sources."""
    python = toolchain(tools)
    with tempfile.TemporaryDirectory() as scratch:
        linked = Path(scratch) / "hansa" / "protos"  # the import path in the .proto files
        linked.parent.mkdir()
        linked.symlink_to(HERE)
        command: list[str | Path] = [python, "-m", "grpc_tools.protoc", f"--proto_path={scratch}"]
        command += [f"--plugin=protoc-gen-mypy={python.parent / 'protoc-gen-mypy'}"]
        command += [f"--python_out={target}", f"--mypy_out=quiet:{target}"]
        subprocess.run([*command, *(f"hansa/protos/{name}" for name in SOURCES)], check=True)
    return sorted((target / "hansa" / "protos").glob("*_pb2.py*"))


def main() -> int:
    """Write the generated files, or with --check list those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    parser.add_argument(
        "--tools", type=Path, default=ROOT / ".tools" / "protos", help="the generator's environment"
    )
    options = parser.parse_args()
    stale = []
    with tempfile.TemporaryDirectory() as scratch:
        for generated in generate(Path(scratch), options.tools):
            committed = HERE / generated.name
            if options.check:
                if not committed.exists() or committed.read_bytes() != generated.read_bytes():
                    stale.append(committed.name)
            else:
                committed.write_bytes(generated.read_bytes())
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make protos`", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
