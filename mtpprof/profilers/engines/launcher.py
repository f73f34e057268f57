"""The process that starts a run's workers on this host, through torch's own elastic launcher.

    python -m mtpprof.profilers.engines.launcher RUN_DIRECTORY NODE_COUNT NODE_RANK ENDPOINT

Rendezvous, ports, monitoring and ending of workers are torch's. With several hosts each runs this with its own rank against one
endpoint and a run directory on shared storage. What failed is reported as an event of the run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from mtpprof.profilers.engines import worker
from mtpprof.profilers.lifetime import die_with_parent
from mtpprof.profilers.process import Nodes
from mtpprof.rundir.directory import WORKER_FAILED, RunDirectory
from mtpprof.rundir.records import RunRecord

PRELOAD = "mtpprof.profilers.engines.preload"
MONITOR_INTERVAL_S = 0.1
SHUTDOWN_TIMEOUT_S = 5


def launch_config(run: RunRecord, nodes: Nodes) -> LaunchConfig:
    """How the workers of `run` are started on this host."""
    alone = nodes.count == 1
    return LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=run.cases[0].tp // nodes.count,
        run_id=run.id,
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint="localhost:0" if alone else nodes.endpoint,
        rdzv_configs={"timeout": int(run.timeout_s), **({} if alone else {"rank": nodes.rank})},
        local_addr="127.0.0.1" if alone else None,
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
        # One process imports torch, the workers are forked from it before it has started a thread or touched a device.
        start_method="forkserver",
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )


def main() -> int:
    """Start the workers and wait for them; 1 when one failed."""
    die_with_parent()
    root, count, rank, endpoint = sys.argv[1:5]
    directory = RunDirectory(Path(root))
    nodes = Nodes(count=int(count), rank=int(rank), endpoint=endpoint)
    run = directory.run()
    multiprocessing.set_forkserver_preload([PRELOAD])
    try:
        elastic_launch(launch_config(run, nodes), worker.main)(root)
    except ChildFailedError as error:
        failed_rank, failure = error.get_first_failure()
        directory.append_event(
            WORKER_FAILED,
            rank=failed_rank,
            exit_code=failure.exitcode,
            signal=failure.signal_name() if failure.exitcode < 0 else None,
            message=_message(failure),
        )
        return 1
    return 0


def _message(failure: ProcessFailure) -> str:
    """The exception's own text; torch wraps it in a dictionary where the worker could write an error file."""
    message: Any = failure.message
    return str(message.get("message", message) if isinstance(message, dict) else message)


if __name__ == "__main__":
    code = main()
    # torch's rendezvous leaves threads that can delay a normal exit; all results are on disk by now.
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)
