"""A driver that turns away 20,000 messages, then 200,000, and prints its peak of memory after each, in MiB.

`many_rejects.py <folder>`
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from airflow_provider_jmsjca import Destination, JmsMessage
from tests.internals.spool import Row, SpoolBatch

COUNTS = (20_000, 200_000)
SEGMENT = 5_000
QUEUE = Destination.queue("orders")


def fill(spool: Path) -> None:
    """Make both batches; in a process of its own, whose memory doesn't count."""
    for count in COUNTS:
        with SpoolBatch(spool, f"b{count}", source=str(QUEUE), activation=str(count)) as batch:
            for first in range(0, count, SEGMENT):
                batch.seal(
                    [
                        Row(JmsMessage.text("x", message_id=f"ID:{number}", destination=QUEUE), 1_700_000_000)
                        for number in range(first, first + SEGMENT)
                    ]
                )
            batch.complete()


def main(spool: Path) -> None:
    """Turn all messages away, and read them back as the task that sends dead letters does."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - not where the batches are made
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    from airflow_provider_jmsjca import Batch, Manifest, rejected_messages  # noqa: PLC0415 - as above
    from tests.internals.spool import take_fence  # noqa: PLC0415 - as above

    # What executors send to the driver is refused beyond this: 200,000 reasons take 40 MB.
    conf = {"spark.driver.maxResultSize": "1m", "spark.ui.enabled": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    for count in COUNTS:
        manifest = Manifest.read(spool / f"b{count}" / "manifest.json")
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            why = (
                sql.lit("E").alias("exception_class"),
                sql.expr("repeat('why ', 50)").alias("exception_message"),
            )
            batch.reject(batch.messages(spark).select("_jms", *why))
        found = sum(1 for _ in rejected_messages(manifest))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        sys.stdout.write(f"{found} {peak:.0f}\n")
    spark.stop()


if __name__ == "__main__":
    if sys.argv[2:] == ["fill"]:
        fill(Path(sys.argv[1]))
    else:
        subprocess.run([sys.executable, __file__, sys.argv[1], "fill"], check=True)
        main(Path(sys.argv[1]))
