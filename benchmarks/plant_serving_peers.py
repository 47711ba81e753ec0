"""Policies behind HTTP as people write it themselves: FastAPI, and mosec, both over onnxruntime.

This file is run by its path in an environment of its own, and imports nothing of Worldloom:

    python plant_serving_peers.py fastapi|mosec|mosec_workers PORT MODEL

Neither has a safety filter or a record; bodies and answers are JSON like those of `/act`.
"""

import os
import sys
from typing import Any


def session(model: str) -> Any:
    """onnxruntime with a policy; one thread, which is its fastest for rows like these."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def serve_fastapi(port: int, model: str) -> None:
    """An endpoint that computes where it stands: a thread for each request would cost more."""
    import numpy as np
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Asked(BaseModel):
        plant: str
        observation: list[float]

    app, policy = FastAPI(), session(model)

    @app.post("/act")
    async def act(asked: Asked) -> dict[str, Any]:
        row = np.asarray([asked.observation], np.float32)
        return {"plant": asked.plant, "action": policy.run(None, {"obs": row})[0][0].tolist()}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def serve_mosec(port: int, model: str, workers: int, batch: int) -> None:
    """mosec's server in Rust, with workers that compute what waits together."""
    import numpy as np
    from mosec import Server, Worker

    class Policy(Worker):
        def __init__(self) -> None:
            self.policy = session(os.environ["POLICY"])

        def forward(self, data: Any) -> Any:
            asked = data if batch > 1 else [data]
            rows = np.asarray([one["observation"] for one in asked], np.float32)
            actions = self.policy.run(None, {"obs": rows})[0].tolist()
            answers = [
                {"plant": one["plant"], "action": action}
                for one, action in zip(asked, actions, strict=True)
            ]
            return answers if batch > 1 else answers[0]

    os.environ["POLICY"] = model
    options = ["--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    sys.argv = [sys.argv[0], *options]
    server = Server()
    # "fork": the class above is of this function, and cannot be pickled.
    server.append_worker(
        Policy,
        num=workers,
        max_batch_size=batch,
        max_wait_time=1,
        start_method="fork",
        route="/act",
    )
    server.run()


if __name__ == "__main__":
    kind, at, file = sys.argv[1:]
    if kind == "fastapi":
        serve_fastapi(int(at), file)
    elif kind == "mosec":
        serve_mosec(int(at), file, workers=1, batch=32)
    else:
        serve_mosec(int(at), file, workers=os.cpu_count() or 1, batch=1)
