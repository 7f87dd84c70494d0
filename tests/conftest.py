"""Settings of every test process, and of the processes that tests start."""

import os

# Most of the time of these tests goes into compiling tiny programs that run once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("FLYTE_SDK_LOGGING_LEVEL", "40")
