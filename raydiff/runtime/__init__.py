import os

if not os.environ.get("RAY_ADDRESS"):  # Before Ray is imported: under `uv run` it would pack the working directory.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
