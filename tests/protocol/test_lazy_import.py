import subprocess
import sys

import verl
from verl.protocol import DataProto

HEAVY = ("torch", "ray", "vllm", "transformers", "tensordict")


def test_importing_verl_loads_nothing_heavy() -> None:
    code = f"import sys, verl; verl.__version__; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_data_proto_resolves_lazily() -> None:
    assert verl.DataProto is DataProto and verl.__version__ == "0.1.0"
    assert {"DataProto", "__version__"} <= set(dir(verl))
