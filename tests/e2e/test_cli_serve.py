"""``tuili serve``: settings reach the server; wrong input ends it at once, and it says why."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from support.program import COMMAND, refused, tuili

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(1000)


def test_a_taken_port_is_said_before_the_model_is_loaded(environment: dict[str, str], tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tuili(environment, "serve", str(tiny), "--port", port, "--backend", "reference")
    refused(done, f"port {port}", "taken", str(os.getpid()), "--port")
    assert "loaded" not in done.stderr


def test_an_open_door_needs_a_key(environment: dict[str, str], tiny: Path) -> None:
    refused(tuili(environment, "serve", str(tiny), "--host", "0.0.0.0", "--port", "0"), "0.0.0.0", "--api-key")


def test_a_server_whose_model_cannot_be_loaded_ends(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "photo.gguf").write_bytes(PNG)
    refused(
        tuili(environment, "serve", str(tmp_path / "photo.gguf"), "--port", "0", "--backend", "reference"), "photo.gguf", "GGUF"
    )


def test_settings_from_flag_environment_and_file(environment: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    """The served name from a flag, the key from the environment, the backend from config.toml; it drains and ends on SIGTERM."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text('backend = "reference"\nport = 1\n')
    environment |= {"TUILI_API_KEY": "first-key,second-key", "TUILI_PORT": "0"}
    command = [*COMMAND, "serve", str(tiny), "--served-model-name", "mini"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        address = _address(process)
        models = _get(f"{address}/v1/models", "second-key")
        assert [model["id"] for model in json.loads(models)["data"]] == ["mini"]
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(60) == 0, log
        assert "first-key" not in log and "second-key" not in log
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _address(process: subprocess.Popen[str]) -> str:
    """Where it listens, as its log says."""
    assert process.stderr
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line):
            return found[0]
    raise AssertionError("the server ended without saying where it listens")


def _get(url: str, key: str) -> str:
    """The answer, once the model is loaded."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503 or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
