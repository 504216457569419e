import time

import pytest

from verl.workers.ray.session import _deadline, _Late


class Slow:
    def __del__(self) -> None:
        time.sleep(0.3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadline_that_passes_where_python_drops_exceptions_comes_again() -> None:
    slow = Slow()
    with pytest.raises(_Late), _deadline(0.1):
        del slow  # until 0.3 s, and what is raised meanwhile is dropped
        time.sleep(30)
