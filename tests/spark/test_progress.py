"""What a job says of its progress, while Spark works."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.internals.spark import ProgressLines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_line_says_how_far_the_stages_are_until_told_to_stop(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gate, said = tmp_path / "gate", ""

    def wait(row: int) -> int:
        end = time.monotonic() + 120
        while row and not gate.exists() and time.monotonic() < end:
            time.sleep(0.01)  # the second task stays under way until its line was said
        return row

    progress = ProgressLines(spark, period=0.05)
    rows = spark.sparkContext.parallelize(range(2), 2).map(wait)
    job = threading.Thread(target=rows.collect)
    job.start()
    end = time.monotonic() + 120
    while "1 of 2 tasks done, 1 under way" not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capfd.readouterr().err
    gate.touch()
    job.join()
    progress.stop()
    assert "Progress: stage " in said
    assert "1 of 2 tasks done, 1 under way\n" in said
    assert "Spark UI" not in said  # it's off in this session
