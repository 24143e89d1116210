"""Where a sweep runs. `launch` is the front; then `plan`, `place`, `one_process` or `tuner`, `follow` and `finish`.

On Ray a trial is a `coordinator` and its `worker`s, which `actors` starts and `worker_deaths` watches and revives;
`concurrency` says how many trials run at once on the `cluster`.
"""

import os

if not os.environ.get("RAY_ADDRESS"):  # Before Ray is imported: under `uv run` it would pack the working directory.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
