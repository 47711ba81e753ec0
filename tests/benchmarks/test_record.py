"""A measurement on its way to a file."""

from benchmarks import record


def test_progress_lines_carry_the_time_and_keep_standard_output_clean(capsys):
    now = iter([100.0, 112.34])
    record.Progress(clock=lambda: next(now))("compiled")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[   12.3 s] compiled\n"
