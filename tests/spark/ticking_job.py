"""A job as a program: a row each moment, a batch that takes a while; it says what it does on standard output."""

import sys
import threading
import time

from spark.core.job_session import only_job
from spark.core.running import Work, run_query
from spark.core.session import open_session


def main(checkpoint: str, batch_s: float, stop_timeout_s: float) -> None:
    """Run until a signal comes."""
    stop = threading.Event()

    def slow(frame, batch_id):
        print("begun", batch_id, flush=True)
        time.sleep(batch_s)
        print("done", batch_id, flush=True)

    work = Work(slow, stop)
    with only_job("ticking", [checkpoint]):
        session = open_session("ticking", conf={"spark.master": "local[1]"}, jars=())
        rows = session.readStream.format("rate").load()
        writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint)
        run_query(writer.start, stop=stop, work=work, stop_timeout_s=stop_timeout_s)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
