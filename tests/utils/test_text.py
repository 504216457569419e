from verl.utils.text import aligned


def test_columns_have_one_width_and_no_line_ends_in_blanks() -> None:
    assert aligned([("role", "rank", "does"), ("a", "0", "waits"), ("critic", "10", "")]) == [
        "role    rank  does",
        "a       0     waits",
        "critic  10",
    ]
