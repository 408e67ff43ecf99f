"""``python -m support.serve_fake``: the real server around a fake model, as a process of its own."""

import argparse
import sys
import time

from support.fake_model import fake_engine
from tuili.config.options import ServerOptions
from tuili.engine.build import LoadedEngine
from tuili.errors import ModelFileError, TuiliError
from tuili.observe.log import configure_logging
from tuili.server.lifecycle import serve


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--api-key", action="append", default=[])
    parser.add_argument("--drain-timeout", type=float, default=20.0)
    parser.add_argument("--seconds-per-step", type=float, default=0.02)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--fail", action="store_true")
    options = parser.parse_args()

    def load() -> LoadedEngine:
        time.sleep(options.load_seconds)
        if options.fail:
            raise ModelFileError("model.gguf is damaged: it ends in the middle; fetch it again")
        return fake_engine(seconds_per_step=options.seconds_per_step, max_num_seqs=2, max_model_len=2048)

    configure_logging()
    server_options = ServerOptions(
        host=options.host, port=options.port, api_keys=tuple(options.api_key), drain_timeout=options.drain_timeout
    )
    try:
        return serve(load, server_options, model_name="fake")
    except TuiliError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
