"""The service in a process that may open only FEW_FILES files, as by `ulimit -n`."""

import os
import resource
import runpy

if __name__ == "__main__":
    few = int(os.environ["FEW_FILES"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    runpy.run_module("app", run_name="__main__", alter_sys=True)
