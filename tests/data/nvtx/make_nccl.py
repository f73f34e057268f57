"""Records the calls of a real NCCL without a GPU: `python make_nccl.py path/to/libnccl.so.2`.

NCCL emits its NVTX range, with the payload, before it looks at the communicator; it then refuses the missing one. The
file is named after NCCL's version.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FLOAT32, FLOAT16, FLOAT64, SUM, AVERAGE = 7, 6, 8, 0, 4


def call(library: str) -> None:
    nccl = ctypes.CDLL(library)
    size = ctypes.c_size_t
    nccl.ncclAllReduce(None, None, size(1024), FLOAT16, SUM, None, None)
    nccl.ncclAllGather(None, None, size(256), FLOAT32, None, None)
    nccl.ncclReduceScatter(None, None, size(10), FLOAT32, AVERAGE, None, None)
    nccl.ncclBroadcast(None, None, size(7), FLOAT32, 2, None, None)
    nccl.ncclReduce(None, None, size(5), FLOAT64, SUM, 1, None, None)
    nccl.ncclAlltoAll(None, None, size(3), FLOAT32, None, None)
    nccl.ncclGather(None, None, size(4), FLOAT32, 0, None, None)
    nccl.ncclScatter(None, None, size(6), FLOAT32, 3, None, None)
    nccl.ncclSend(None, size(3), FLOAT32, 1, None, None)
    nccl.ncclRecv(None, size(4), FLOAT32, 1, None, None)


def main() -> None:
    library = os.environ.get("MAKE_NCCL_LIBRARY")
    if library is not None:
        call(library)
        return
    from mtpprof.profilers.nvtx import capture_environment, loaded_files

    version = ctypes.c_int()
    ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
    number = version.value
    with tempfile.TemporaryDirectory() as folder:
        environment = capture_environment(Path(folder)) | {
            "MAKE_NCCL_LIBRARY": str(Path(sys.argv[1]).absolute())
        }
        subprocess.run(
            ["python", Path(__file__).name],
            executable=sys.executable,
            cwd=Path(__file__).parent,
            env=os.environ | environment,
            check=True,
        )
        (capture,) = loaded_files(Path(folder))
        name = f"nccl-{number // 10000}.{number // 100 % 100}.{number % 100}.nvtx.gz"
        Path(__file__).with_name(name).write_bytes(gzip.compress(capture.read_bytes(), mtime=0))


if __name__ == "__main__":
    main()
