"""Small tools that every layer uses."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.models.loading import get_model_and_tokenizer
    from verl.utils.backends import get_available_backends

__all__ = ["get_available_backends", "get_model_and_tokenizer"]


def __getattr__(name: str) -> Any:
    if name == "get_available_backends":
        from verl.utils.backends import get_available_backends

        return get_available_backends
    # It lives above this package and loads transformers, so it is looked up only when somebody asks for it.
    if name == "get_model_and_tokenizer":
        from verl.models.loading import get_model_and_tokenizer

        return get_model_and_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
