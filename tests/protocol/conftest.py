from collections.abc import Callable

import pytest

from verl.protocol import DataProto
from verl.protocol.compare import values_equal


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Assert that two batches hold the same rows, columns, dtypes and meta."""

    def check(left: DataProto, right: DataProto, meta: bool = True) -> None:
        assert len(left) == len(right)
        tensors = [{} if data.batch is None else dict(data.batch.items()) for data in (left, right)]
        assert values_equal(*tensors), tensors
        assert values_equal(left.non_tensor_batch, right.non_tensor_batch)
        assert not meta or values_equal(left.meta_info, right.meta_info)

    return check
