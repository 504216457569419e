"""Batches without end."""

from itertools import islice

import pytest

from verl.trainer.loaders import endless


def test_pass_after_pass() -> None:
    assert list(islice(endless([1, 2]), 5)) == [1, 2, 1, 2, 1]


def test_one_pass_may_be_empty_as_after_a_resume_at_the_end_of_an_epoch() -> None:
    class Resumed:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([] if self.passes == 1 else [1])

    assert list(islice(endless(Resumed()), 2)) == [1, 1]


def test_data_that_are_used_up_are_told() -> None:
    batches = endless(iter([1, 2]))
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(ValueError, match="no further batch: a stream that can be read only once is used up, so set"):
        next(batches)
